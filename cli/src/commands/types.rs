//! `howdah types`: counts the jobs of each type, and shows the health of the storage.

use howdah_client::{Client, proto::TaskType};
use jiff::Timestamp;

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    storage,
    table::{Align, Table},
    task_type, text,
};

/// Count the jobs of each task type by state, and show the health of the storage
///
/// OLDEST is the time for which the oldest ready job has been ready. A type that is braked says so before its settings. Settings that are not shown have the broker's defaults. The
/// lines below the table show the dead rows that VACUUM has not removed, and the snapshot that prevents their removal.
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
        match client.get_task_type(name).await? {
            Some(task_type) => found.push(task_type),
            None => return Err(task_type::unknown(name)),
        }
    }
    if args.task_types.is_empty() {
        found = client.list_task_types().await?;
    }
    if args.json {
        output.messages("TaskType", &found)?;
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
        Some(health) => output.line(storage::block(&health, args.storage)),
        None if args.storage => Err(Failure::failed(
            "the broker did not report its storage: its database role may not read Postgres's statistics, or its release is \
             too old",
        )),
        None => Ok(()),
    }
}

fn table(types: &[TaskType]) -> Table<8> {
    let mut table = Table::new([
        ("TYPE", Align::Left),
        ("READY", Align::Right),
        ("LEASED", Align::Right),
        ("SCHEDULED", Align::Right),
        ("WAITING", Align::Right),
        ("DEAD", Align::Right),
        ("OLDEST", Align::Right),
        ("SETTINGS", Align::Left),
    ]);
    let now = Timestamp::now();
    for task_type in types {
        let counts = task_type.counts.unwrap_or_default();
        let age = text::duration(task_type.oldest_ready_age.as_ref()).map(text::short);
        table.row_of_store(
            [
                howdah_core::logging::escaped(&task_type.name).into_owned(),
                counts.ready.to_string(),
                counts.leased.to_string(),
                counts.scheduled.to_string(),
                counts.waiting.to_string(),
                counts.dead.to_string(),
                age.unwrap_or_else(|| "-".into()),
                settings(task_type, now),
            ],
            &task_type.store,
        );
    }
    table
}

/// Returns the state of the brake, if the type is braked, and the settings that are set.
fn settings(task_type: &TaskType, now: Timestamp) -> String {
    let words = super::type_set::settings_words(task_type.settings.as_ref());
    let Some(braked) = &task_type.braked else { return words };
    let relative =
        |time: Option<&_>| text::timestamp(time).map_or_else(|| "-".into(), |time| text::relative(time, now));
    let next = match text::timestamp(braked.next_attempt_time.as_ref()) {
        Some(next) if next <= now => "now".into(),
        _ => relative(braked.next_attempt_time.as_ref()),
    };
    let since = relative(braked.since_time.as_ref());
    format!("braked since {since} ({} failures in a row, next attempt {next}), {words}", braked.failures_in_a_row)
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
}
