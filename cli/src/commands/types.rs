//! `howdah types`: counts the jobs of each type, and shows the health of the storage.

use howdah_client::{
    Client,
    proto::{
        Finding, FindingLevel, ListTaskTypesRequest, SnapshotHolder, SnapshotHolderKind, StorageHealth, TableHealth,
        TaskType,
    },
};
use howdah_core::logging::escaped;
use jiff::Timestamp;

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    table::Table,
    task_type, text,
};

/// Count the jobs of each task type by state, and show the health of the storage
///
/// OLDEST is how long the oldest ready job has been ready. SETTINGS begins with the state of the brake if the type is braked,
/// and omits settings with the broker's default. The lines below the table show the dead rows that VACUUM has not removed, and
/// the snapshot that prevents their removal.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah types
  howdah types email.send --json | jq -r '.counts.ready // 0'
  howdah types --storage --json | jq .oldest_snapshot.pid")]
pub(super) struct Args {
    /// Show only these types, without the storage
    #[arg(value_name = "TYPE")]
    task_types: Vec<String>,
    /// Show only the storage
    #[arg(long, conflicts_with = "task_types")]
    storage: bool,
    /// Print one JSON object per type: the message TaskType; with --storage, one object: StorageHealth
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut output = Output::new();
        if !args.storage {
            print_types(args, &client, &mut output).await?;
        }
        if args.storage || (args.task_types.is_empty() && !args.json) {
            print_storage(args, &client, &mut output).await?;
        }
        output.flush()
    })
}

async fn print_types(args: &Args, client: &Client, output: &mut Output) -> Result<(), Failure> {
    let mut found = Vec::new();
    for name in &args.task_types {
        // One entry for each store that has the type.
        let entries =
            client.find_task_types(ListTaskTypesRequest { task_type: name.clone(), ..Default::default() }).await?;
        if entries.is_empty() {
            return Err(task_type::unknown(name));
        }
        found.extend(entries);
    }
    if args.task_types.is_empty() {
        found = client.list_task_types().await?;
    }
    if args.json {
        found.iter().try_for_each(|task_type| output.message("TaskType", task_type))?;
    } else if found.is_empty() {
        note("no task types yet: create one with `howdah enqueue TYPE`");
    } else {
        output.line(table(&found))?;
        // An empty line separates the types from the storage.
        if args.task_types.is_empty() {
            output.line("")?;
        }
    }
    Ok(())
}

async fn print_storage(args: &Args, client: &Client, output: &mut Output) -> Result<(), Failure> {
    match client.storage_health().await? {
        Some(health) if args.json => output.message("StorageHealth", &health),
        Some(health) => output.line(storage_block(&health, args.storage)),
        None if args.storage => Err(Failure::failed(
            "the broker did not report its storage: its database role may not read Postgres's statistics, or its release is \
             too old",
        )),
        None => Ok(()),
    }
}

fn table(types: &[TaskType]) -> Table<'_, TaskType> {
    let (now, counts) = (Timestamp::now(), |task_type: &TaskType| task_type.counts.unwrap_or_default());
    let age = |task_type: &TaskType| text::duration(task_type.oldest_ready_age.as_ref()).map(text::short);
    Table::new(types)
        .store(|task_type| &task_type.store)
        .left("TYPE", |task_type| &task_type.name)
        .right("READY", |task_type| counts(task_type).ready)
        .right("LEASED", |task_type| counts(task_type).leased)
        .right("SCHEDULED", |task_type| counts(task_type).scheduled)
        .right("WAITING", |task_type| counts(task_type).waiting)
        .right("DEAD", |task_type| counts(task_type).dead)
        .right("OLDEST", |task_type| age(task_type).unwrap_or_else(|| "-".into()))
        .left("SETTINGS", |task_type| settings(task_type, now))
}

/// Returns the state of the brake, if the type is braked, and the settings that are set.
fn settings(task_type: &TaskType, now: Timestamp) -> String {
    let words = super::type_settings::settings_words(task_type.settings.as_ref());
    let Some(braked) = &task_type.braked else { return words };
    let relative = |time| text::relative(time, now);
    let next = match text::timestamp(braked.next_attempt_time.as_ref()) {
        Some(next) if next <= now => "now".into(),
        next => next.map_or("-".into(), relative),
    };
    let since = text::timestamp(braked.since_time.as_ref()).map_or("-".into(), relative);
    format!("braked since {since} ({} failures in a row, next attempt {next}), {words}", braked.failures_in_a_row)
}

/// Formats the dead rows, the oldest snapshot, the notification queue, the history partitions and the findings as lines.
fn storage_block(health: &StorageHealth, all_findings: bool) -> String {
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
    use howdah_client::proto::{Brake, Braked, TaskTypeCounts, TaskTypeSettings};

    use super::*;

    #[test]
    fn types_are_listed_in_columns() {
        let busy = TaskType {
            name: "email.send".into(),
            counts: Some(TaskTypeCounts { ready: 12_345, dead: 1, ..TaskTypeCounts::default() }),
            oldest_ready_age: Some(prost_types::Duration { seconds: 75, nanos: 0 }),
            ..TaskType::default()
        };
        let idle = TaskType { name: "a".into(), ..TaskType::default() };
        let expected = "\
TYPE        READY  LEASED  SCHEDULED  WAITING  DEAD  OLDEST  SETTINGS
email.send  12345       0          0        0     1  1m 15s
a               0       0          0        0     0       -";
        assert_eq!(table(&[busy, idle]).to_string(), expected);
    }

    #[test]
    fn a_braked_type_says_since_when_and_until_when() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let braked = Braked { since_time: at(1_000), failures_in_a_row: 27, next_attempt_time: at(1_100) };
        let brake = Some(Brake { failures: 20, ..Brake::default() });
        let settings = Some(TaskTypeSettings { brake, ..TaskTypeSettings::default() });
        let task_type = TaskType { braked: Some(braked), settings, ..TaskType::default() };
        let words = |now| super::settings(&task_type, Timestamp::from_second(now).unwrap());
        assert_eq!(
            words(1_070),
            "braked since 1m 10s ago (27 failures in a row, next attempt in 30s), brake-failures 20"
        );
        assert!(words(1_100).contains("next attempt now"));
    }

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
        assert_eq!(storage_block(&held(Some(192)), true), expected);
    }

    #[test]
    fn a_snapshot_younger_than_a_second_is_shown_as_none_and_unknown_fields_are_left_out() {
        let none = "\noldest snapshot  none older than 1s\n";
        assert!(storage_block(&held(Some(0)), true).contains(none));
        let mut health = held(None);
        if let Some(holder) = &mut health.oldest_snapshot {
            (holder.state, holder.application_name) = (String::new(), String::new());
        }
        assert!(storage_block(&health, true).contains("\noldest snapshot  1234 transactions: pid 4711, ann@app\n"));
        health.oldest_snapshot = None;
        assert!(storage_block(&health, true).contains(none));
    }

    #[test]
    fn a_snapshot_holder_without_a_process_is_shown_by_its_name() {
        let mut health = held(Some(60));
        let holder = health.oldest_snapshot.get_or_insert_default();
        *holder = SnapshotHolder { name: "pay \"1\"".into(), user: "ann".into(), ..SnapshotHolder::default() };
        holder.set_kind(SnapshotHolderKind::PreparedTransaction);
        assert!(storage_block(&health, true).contains("0 transactions: prepared transaction \"pay \\\"1\\\"\", ann\n"));
    }
}
