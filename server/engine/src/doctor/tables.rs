//! Checks of the tables: dead rows, held snapshots, unused space, partitions and schedules.

use std::time::Duration;

use howdah_core::durations;

use super::Finding;
use crate::store::{LockHolder, MaintenanceState, SchemaFacts, StorageHealth, TableFacts};

/// Age above which a held snapshot is a problem: vacuum cannot remove rows that died after the snapshot.
const HELD: Duration = Duration::from_secs(300);
/// Delay of a planned time above which a schedule counts as late.
const LATE: Duration = Duration::from_secs(60);
/// Age of a schema in seconds up to which missing partitions are no problem, because no broker may have started yet.
const NEW_SCHEMA: i64 = 3600;
/// Time in seconds after the start of a broker up to which missing partitions are no problem: the broker may still create them.
const NEW_BROKER: i64 = 120;
/// Size of a table in bytes up to which the check for unused space skips it.
const SMALL: i64 = 64 << 20;
/// Maximum bytes of table and indexes per job, with a payload of 1 KiB and half-full index pages.
const BYTES_A_ROW: i64 = 4 << 10;

/// Runs all checks of the tables.
pub(super) fn check(schema: &SchemaFacts, health: &StorageHealth, state: &MaintenanceState) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(snapshot(health));
    findings.extend(schema.lock_holders.iter().map(lock_holder));
    findings.extend(dead_rows(health));
    if health.notification_queue_usage > 0.5 {
        findings.push(Finding::problem(
            "notifications",
            format!("the notification queue is {:.0}% full", health.notification_queue_usage * 100.0),
            "end the listening session that stays in a transaction; the log of Postgres names its pid",
        ));
    }
    findings.extend(schema.tables.iter().flat_map(table));
    findings.extend(partitions(schema, state));
    findings.extend(schedules(state));
    if !schema.invalid_indexes.is_empty() {
        let names = schema.invalid_indexes.join(", ");
        findings.push(Finding::problem(
            "indexes",
            format!("invalid indexes are not used: {names}"),
            "run REINDEX INDEX for each of them",
        ));
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
            durations::short(holder.age.unwrap_or_default()),
            words.join(", ")
        ),
        "end the holder of the snapshot: docs/operate/troubleshoot.md, When the tables grow",
    ))
}

fn lock_holder(holder: &LockHolder) -> Finding {
    let LockHolder { pid, user, application, idle_s, tables } = holder;
    let idle = durations::short(Duration::from_secs((*idle_s).max(0) as u64));
    Finding::advice(
        "locks",
        format!(
            "a transaction that has been idle for {idle} may lock rows of {}, and calls that need these rows wait: pid {pid}, {user}, \
             {application}",
            tables.join(", ")
        ),
        format!("end the transaction, or SELECT pg_terminate_backend({pid}); set idle_in_transaction_session_timeout"),
    )
}

fn dead_rows(health: &StorageHealth) -> Option<Finding> {
    let late = |table: &&crate::store::TableHealth| table.dead_rows > 2 * table.autovacuum_threshold;
    let worst = health.tables.iter().filter(late).max_by_key(|table| table.dead_rows)?;
    Some(Finding::problem(
        "dead_rows",
        format!(
            "{} has {} dead rows; autovacuum should begin at {}",
            worst.name, worst.dead_rows, worst.autovacuum_threshold
        ),
        format!("end holders of old snapshots, or raise autovacuum_max_workers; then VACUUM howdah.{}", worst.name),
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
        let found = format!("{name} has {} for about {live_rows} rows", format_args!("{} MiB", bytes >> 20));
        let change =
            format!("new rows reuse the space; to release it, run VACUUM FULL howdah.{name}, which blocks all jobs");
        findings.push(Finding::advice("bloat", found, change));
    }
    findings
}

fn partitions(schema: &SchemaFacts, state: &MaintenanceState) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The first broker of a new database creates the partitions, shortly after its start.
    let is_new = schema.made_s < NEW_SCHEMA || schema.serving_s.is_some_and(|since| since < NEW_BROKER);
    if state.days_ahead < 1 && !is_new {
        findings.push(Finding::problem(
            "partitions",
            "tomorrow has no partition of history, payloads or the audit",
            "start a broker, which creates it within a minute; if a broker is running, its log has the error",
        ));
    }
    if schema.default_rows {
        findings.push(Finding::advice(
            "default_partition",
            "a default partition, which is never dropped, has rows of days without a partition",
            "keep a broker running; rows of history are moved when the partition of their day is created",
        ));
    }
    findings
}

fn schedules(state: &MaintenanceState) -> Vec<Finding> {
    let mut findings = Vec::new();
    if state.schedules_failing > 0 {
        let found = format!("{} schedules cannot enqueue their jobs", state.schedules_failing);
        findings.push(Finding::problem(
            "schedules",
            found,
            "howdah schedule list shows the schedules, howdah schedule show NAME the error",
        ));
    }
    if state.schedule_delay > LATE {
        let found = format!("a planned time of a schedule is {} late", durations::short(state.schedule_delay));
        findings.push(Finding::problem(
            "schedules_late",
            found,
            "start a broker; if a broker is running, its log has the reason",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use crate::store::{HolderKind, SnapshotHolder, TableHealth};

    use super::{super::Level, *};

    /// Arguments of `check`, for a test to change.
    #[derive(Default)]
    struct Looked {
        schema: SchemaFacts,
        health: StorageHealth,
        state: MaintenanceState,
    }

    /// Returns the facts of a healthy table of unfinished jobs, for which no check has a finding.
    fn good() -> TableFacts {
        TableFacts { name: "ready".into(), live_rows: 1_000, bytes: 1 << 20, autovacuum: true, analyzed: true }
    }

    /// Applies `change` to facts without findings, and returns the findings.
    fn findings(change: impl FnOnce(&mut Looked)) -> Vec<Finding> {
        let mut looked = Looked::default();
        looked.schema.tables = vec![good()];
        looked.state.days_ahead = 1;
        looked.schema.made_s = 1_000_000;
        change(&mut looked);
        check(&looked.schema, &looked.health, &looked.state)
    }

    /// Applies `change` to facts without findings, and returns the names of the checks that then have a finding.
    fn found(change: impl FnOnce(&mut Looked)) -> Vec<&'static str> {
        findings(change).iter().map(|finding| finding.check).collect()
    }

    fn held_for(seconds: Option<u64>) -> SnapshotHolder {
        SnapshotHolder {
            broker: None,
            kind: HolderKind::Session,
            pid: Some(7),
            name: None,
            user: Some("ann".into()),
            database: None,
            application: Some("psql".into()),
            state: Some("idle in transaction".into()),
            xid: 1,
            xid_age: 1,
            age: seconds.map(Duration::from_secs),
        }
    }

    #[test]
    fn good_tables_have_no_findings() {
        assert_eq!(found(|_| {}), [""; 0]);
    }

    #[test]
    fn a_snapshot_is_found_when_it_has_been_held_for_five_minutes() {
        let held = |seconds| findings(|looked| looked.health.oldest_snapshot = Some(held_for(seconds)));
        assert_eq!([held(None), held(Some(300))], [[], []]);
        let found = held(Some(301)).remove(0);
        assert_eq!((found.check, found.level), ("snapshot", Level::Problem));
        assert_eq!(found.found, "a session has held back vacuum for 5m 1s: ann, psql, idle in transaction, pid 7");
    }

    #[test]
    fn the_notification_queue_is_found_when_it_is_more_than_half_full() {
        let full = |usage| found(|looked| looked.health.notification_queue_usage = usage);
        assert_eq!([full(0.0), full(0.5)], [[""; 0]; 2]);
        assert_eq!(full(0.51), ["notifications"]);
    }

    #[test]
    fn dead_rows_are_found_when_there_are_more_than_twice_as_many_as_start_autovacuum() {
        let dead = |dead_rows| {
            let table = TableHealth { name: "leased", live_rows: 0, dead_rows, autovacuum_threshold: 1_000 };
            found(|looked| looked.health.tables = vec![table])
        };
        assert_eq!(dead(2_000), [""; 0]);
        assert_eq!(dead(2_001), ["dead_rows"]);
    }

    #[test]
    fn a_table_without_autovacuum_or_statistics_or_with_much_unused_space_is_found() {
        let table = |table: TableFacts| found(|looked| looked.schema.tables.push(table));
        assert_eq!(table(TableFacts { autovacuum: false, ..good() }), ["autovacuum_of_table"]);
        let rows = |live_rows, analyzed| table(TableFacts { live_rows, analyzed, ..good() });
        assert_eq!([rows(100_000, false), rows(100_001, true)], [[""; 0]; 2]);
        assert_eq!(rows(100_001, false), ["analyze"]);
        let size = |live_rows, bytes| table(TableFacts { live_rows, bytes, ..good() });
        assert_eq!([size(0, SMALL), size(100_000, BYTES_A_ROW * 100_000)], [[""; 0]; 2]);
        assert_eq!([size(0, SMALL + 1), size(100_000, BYTES_A_ROW * 100_000 + 1)], [["bloat"]; 2]);
    }

    #[test]
    fn partitions_and_indexes_are_found() {
        assert_eq!(found(|looked| looked.state.days_ahead = 0), ["partitions"]);
        assert_eq!(found(|looked| looked.schema.default_rows = true), ["default_partition"]);
        assert_eq!(found(|looked| looked.schema.invalid_indexes.push("ready_by_id".into())), ["indexes"]);
        let new = |made_s, serving_s| {
            found(|looked| {
                looked.state.days_ahead = 0;
                looked.schema = SchemaFacts { made_s, serving_s, ..std::mem::take(&mut looked.schema) };
            })
        };
        assert_eq!(
            [new(60, None), new(60, Some(50)), new(1_000_000, Some(10))],
            [[""; 0]; 3],
            "a broker will create the partitions"
        );
        assert_eq!([new(NEW_SCHEMA, None), new(1_000_000, Some(NEW_BROKER))], [["partitions"]; 2]);
    }

    #[test]
    fn schedules_are_found_when_they_fail_or_are_a_minute_late() {
        assert_eq!(found(|looked| looked.state.schedules_failing = 1), ["schedules"]);
        let late = |seconds| found(|looked| looked.state.schedule_delay = Duration::from_secs(seconds));
        assert_eq!(late(60), [""; 0]);
        assert_eq!(late(61), ["schedules_late"]);
    }
}
