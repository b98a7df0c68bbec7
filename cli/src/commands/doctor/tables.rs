//! The tables: dead rows, held snapshots, space that is not used, partitions, and what happens by the clock.

use std::time::Duration;

use howdah_server::store::{Facts, StorageHealth, TableFacts, Upkeep};

use super::{super::text, finding::Finding};

/// How long a snapshot may be held.
const HELD: Duration = Duration::from_secs(300);
/// How late a schedule may be.
const LATE: Duration = Duration::from_secs(60);
/// Below this a table is small, whatever is in it.
const SMALL: i64 = 64 << 20;
/// The most bytes of table and indexes that a job has, payloads of 1 KiB and an index page half full included.
const BYTES_A_ROW: i64 = 4 << 10;

/// All of them.
pub(super) fn check(facts: &Facts, health: &StorageHealth, upkeep: &Upkeep) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(snapshot(health));
    findings.extend(dead_rows(health));
    if health.notification_queue_usage > 0.5 {
        findings.push(Finding::problem(
            "notifications",
            format!("the notification queue is {:.0}% full", health.notification_queue_usage * 100.0),
            "end the listening session that stays in a transaction; Postgres's log names its pid",
        ));
    }
    findings.extend(facts.tables.iter().flat_map(table));
    findings.extend(partitions(facts, upkeep));
    findings.extend(schedules(upkeep));
    if !facts.invalid_indexes.is_empty() {
        let names = facts.invalid_indexes.join(", ");
        findings.push(Finding::problem(
            "indexes",
            format!("invalid indexes are not used: {names}"),
            "REINDEX INDEX each of them",
        ));
    }
    if !facts.idle_slots.is_empty() {
        let names = facts.idle_slots.join(", ");
        let found = format!("nobody reads the replication slots {names}, and Postgres keeps its log for them");
        findings.push(Finding::advice("slots", found, "bring their readers back, or pg_drop_replication_slot"));
    }
    findings
}

fn snapshot(health: &StorageHealth) -> Option<Finding> {
    let holder = health.oldest_snapshot.as_ref().filter(|holder| holder.age.is_some_and(|age| age > HELD))?;
    let words = [&holder.name, &holder.user, &holder.application, &holder.state];
    let mut words: Vec<String> = words.into_iter().flatten().cloned().collect();
    words.extend(holder.pid.map(|pid| format!("pid {pid}")));
    Some(Finding::problem(
        "snapshot",
        format!(
            "a {} has held back vacuum for {}: {}",
            holder.kind.name(),
            text::short(holder.age.unwrap_or_default()),
            words.join(", ")
        ),
        "end it: docs/operate/troubleshoot.md, When the tables grow",
    ))
}

fn dead_rows(health: &StorageHealth) -> Option<Finding> {
    let late = |table: &&howdah_server::store::TableHealth| table.dead_rows > 2 * table.autovacuum_threshold;
    let worst = health.tables.iter().filter(late).max_by_key(|table| table.dead_rows)?;
    Some(Finding::problem(
        "dead_rows",
        format!(
            "{} has {} dead rows; autovacuum should begin at {}",
            worst.name, worst.dead_rows, worst.autovacuum_threshold
        ),
        format!("end what holds a snapshot, or give autovacuum more workers; then VACUUM howdah.{}", worst.name),
    ))
}

fn table(table: &TableFacts) -> Vec<Finding> {
    let TableFacts { name, live_rows, bytes, autovacuum, analyzed } = table;
    let mut findings = Vec::new();
    if !autovacuum {
        let change = format!("ALTER TABLE howdah.{name} RESET (autovacuum_enabled)");
        findings.push(Finding::problem("autovacuum_of_table", format!("autovacuum is off for {name}"), change));
    }
    if !analyzed && *live_rows > 100_000 {
        let found = format!("{name} has about {live_rows} rows and no statistics");
        findings.push(Finding::advice("analyze", found, format!("ANALYZE howdah.{name}")));
    }
    if *bytes > SMALL && *bytes > live_rows.saturating_mul(BYTES_A_ROW) {
        let found = format!("{name} has {} for about {live_rows} rows", text::size(*bytes as usize));
        let change =
            format!("the space is used again; to give it back, VACUUM FULL howdah.{name} while no job may move");
        findings.push(Finding::advice("bloat", found, change));
    }
    findings
}

fn partitions(facts: &Facts, upkeep: &Upkeep) -> Vec<Finding> {
    let mut findings = Vec::new();
    // A broker that has just started is about to make them.
    if upkeep.days_ahead < 1 {
        findings.push(Finding::problem(
            "partitions",
            "tomorrow has no partition of history, payloads or the audit",
            "start a broker, which makes it within a minute; if one runs, its log says why it cannot",
        ));
    }
    if facts.default_rows {
        findings.push(Finding::advice(
            "default_partition",
            "rows of days without a partition are in a default partition, which is never dropped",
            "keep a broker running; rows of history are moved when the partition of their day is made",
        ));
    }
    findings
}

fn schedules(upkeep: &Upkeep) -> Vec<Finding> {
    let mut findings = Vec::new();
    if upkeep.schedules_failing > 0 {
        let found = format!("{} schedules cannot enqueue their jobs", upkeep.schedules_failing);
        findings.push(Finding::problem(
            "schedules",
            found,
            "howdah schedule list shows them, howdah schedule show NAME the error",
        ));
    }
    if upkeep.schedule_delay > LATE {
        let found = format!("a planned time of a schedule is {} late", text::short(upkeep.schedule_delay));
        findings.push(Finding::problem(
            "schedules_late",
            found,
            "start a broker; if one runs, its log says what holds it up",
        ));
    }
    findings
}
