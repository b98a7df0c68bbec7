//! Formats the health of the storage, which `howdah types` prints below its table.

use howdah_client::proto::{Finding, FindingLevel, SnapshotHolder, SnapshotHolderKind, StorageHealth, TableHealth};
use howdah_core::logging::escaped;

use super::text;

/// Formats the dead rows, the oldest snapshot, the notification queue, the history partitions and the findings as lines.
pub(super) fn block(health: &StorageHealth, all_findings: bool) -> String {
    let dead: Vec<String> = health.tables.iter().map(dead_rows).collect();
    let oldest = health.oldest_snapshot.as_ref().and_then(oldest).unwrap_or_else(|| "none older than 1s".into());
    let is_shown = |one: &&Finding| all_findings || one.level() == FindingLevel::Problem;
    let findings = health.findings.iter().filter(is_shown).map(finding).collect::<String>();
    format!(
        "dead rows        {}\noldest snapshot  {oldest}\nnotifications    {:.0}% of the queue\nhistory          {} partitions{findings}",
        dead.join(", "),
        health.notification_queue_usage * 100.0,
        health.history_partitions,
    )
}

/// Formats a finding as `howdah doctor` prints it.
fn finding(finding: &Finding) -> String {
    let level = if finding.level() == FindingLevel::Problem { "problem" } else { "advice" };
    let (check, found, change) = (escaped(&finding.check), escaped(&finding.found), escaped(&finding.change));
    format!("\n{level:7}          {check}: {found}\n                 {change}")
}

fn dead_rows(table: &TableHealth) -> String {
    // The autovacuum threshold is shown only if autovacuum is late or cannot remove dead rows.
    let late = table.dead_rows > table.autovacuum_threshold;
    let bound = if late { format!(" (vacuum is due at {})", table.autovacuum_threshold) } else { String::new() };
    format!("{} {}{bound}", escaped(&table.name), table.dead_rows)
}

/// Describes the holder of the oldest snapshot. Returns `None` for a snapshot younger than a second, because every statement has
/// a short snapshot.
fn oldest(holder: &SnapshotHolder) -> Option<String> {
    let age = text::duration(holder.age.as_ref());
    if age.is_some_and(|age| age.as_secs() == 0) {
        return None;
    }
    let age = age.map(|age| format!("{}, ", text::short(age))).unwrap_or_default();
    let mut words = Vec::new();
    match holder.kind() {
        SnapshotHolderKind::PreparedTransaction => words.push(format!("prepared transaction {:?}", holder.name)),
        SnapshotHolderKind::ReplicationSlot => words.push(format!("replication slot {:?}", holder.name)),
        SnapshotHolderKind::Session | SnapshotHolderKind::Unspecified => {}
    }
    if holder.pid != 0 {
        words.push(format!("pid {}", holder.pid));
    }
    let at = if holder.user.is_empty() || holder.database.is_empty() { "" } else { "@" };
    words.push(format!("{}{at}{}", holder.user, holder.database));
    words.extend([holder.application_name.clone(), holder.state.clone()]);
    words.retain(|word| !word.is_empty());
    Some(format!("{age}{} transactions: {}", holder.xid_age, escaped(&words.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(seconds: Option<i64>) -> StorageHealth {
        let table = |name: &str, dead_rows| TableHealth {
            name: name.into(),
            live_rows: 3,
            dead_rows,
            autovacuum_threshold: 10_000,
        };
        let holder = SnapshotHolder {
            kind: SnapshotHolderKind::Session.into(),
            pid: 4711,
            user: "ann".into(),
            database: "app".into(),
            application_name: "psql\u{1b}[2J".into(),
            state: "idle in transaction".into(),
            age: seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
            xid_age: 1234,
            ..SnapshotHolder::default()
        };
        StorageHealth {
            tables: vec![table("ready", 10_001), table("leased", 12)],
            oldest_snapshot: Some(holder),
            notification_queue_usage: 0.126,
            history_partitions: 5,
            findings: vec![Finding {
                level: FindingLevel::Problem.into(),
                check: "fsync".into(),
                found: "fsync is off".into(),
                change: "ALTER SYSTEM SET fsync = on".into(),
            }],
            examine_time: None,
        }
    }

    #[test]
    fn the_block_names_the_holder_of_the_oldest_snapshot_with_control_characters_escaped() {
        let expected = "\
dead rows        ready 10001 (vacuum is due at 10000), leased 12
oldest snapshot  3m 12s, 1234 transactions: pid 4711, ann@app, psql\\u{1b}[2J, idle in transaction
notifications    13% of the queue
history          5 partitions
problem          fsync: fsync is off
                 ALTER SYSTEM SET fsync = on";
        assert_eq!(block(&held(Some(192)), true), expected);
    }

    #[test]
    fn a_snapshot_younger_than_a_second_is_shown_as_none_and_unknown_fields_are_left_out() {
        let none = "\noldest snapshot  none older than 1s\n";
        assert!(block(&held(Some(0)), true).contains(none));
        let mut health = held(None);
        if let Some(holder) = &mut health.oldest_snapshot {
            (holder.state, holder.application_name) = (String::new(), String::new());
        }
        assert!(block(&health, true).contains("\noldest snapshot  1234 transactions: pid 4711, ann@app\n"));
        health.oldest_snapshot = None;
        assert!(block(&health, true).contains(none));
    }

    #[test]
    fn a_snapshot_holder_without_a_process_is_shown_by_its_name() {
        let mut health = held(Some(60));
        let holder = health.oldest_snapshot.get_or_insert_default();
        *holder = SnapshotHolder { name: "pay \"1\"".into(), user: "ann".into(), ..SnapshotHolder::default() };
        holder.set_kind(SnapshotHolderKind::PreparedTransaction);
        assert!(block(&health, true).contains("0 transactions: prepared transaction \"pay \\\"1\\\"\", ann\n"));
    }
}
