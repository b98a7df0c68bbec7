//! `howdah limit`: shows, limits, pauses and resumes limit keys of a task type.

use std::time::Duration;

use howdah_client::proto::{LimitKey, ListLimitKeysRequest};
use howdah_core::logging::escaped;

use super::{
    context::Global,
    failure::Failure,
    output::{self, note},
    task_type, text, values,
};

/// Commands for limit keys.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List the limit keys of a task type that have waiting jobs, are paused or have their own limit
    List {
        /// Task type of the limit keys
        #[arg(value_name = "TYPE")]
        task_type: String,
        /// Print one JSON object per key: the message LimitKey
        #[arg(long)]
        json: bool,
    },
    /// Set the limit of one limit key, instead of --key-max-running of the task type
    Set {
        #[command(flatten)]
        of: KeyArgs,
        /// Run at most this many jobs of the limit key at once, on all brokers together, 1 to 1000000
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        max_running: u32,
    },
    /// Remove the limit of one limit key, so that the limit of the task type applies
    Unset(KeyArgs),
    /// Pause a limit key: its jobs wait, and running jobs continue
    Pause {
        #[command(flatten)]
        of: KeyArgs,
        /// Duration of the pause, such as 15m [default: until the key is resumed]
        #[arg(long = "for", value_name = "DURATION", value_parser = values::duration)]
        duration: Option<Duration>,
    },
    /// End the pause of a limit key
    Resume(KeyArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// Task type of the limit key
    #[arg(value_name = "TYPE")]
    task_type: String,
    /// Limit key
    #[arg(value_name = "KEY")]
    key: String,
}

pub(super) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| match command {
        Command::List { task_type, json } => {
            let keys = client.list_limit_keys(&task_type).await?;
            if keys.is_empty() {
                task_type::must_exist(&client, &*task_type).await?;
            }
            if keys.is_empty() && !json {
                note(format_args!("no limit key of {task_type} has waiting jobs, is paused or has its own limit"));
                return Ok(());
            }
            output::list(json, "LimitKey", &keys, || keys.iter().map(describe).collect::<Vec<_>>().join("\n"))
        }
        Command::Set { of: KeyArgs { task_type, key }, max_running } => {
            Ok(client.update_limit_key(task_type, key, max_running).await?)
        }
        Command::Unset(KeyArgs { task_type, key }) => {
            task_type::must_exist(&client, &*task_type).await?;
            Ok(client.update_limit_key(task_type, key, 0).await?)
        }
        Command::Pause { of: KeyArgs { task_type, key }, duration } => {
            task_type::must_exist(&client, &*task_type).await?;
            client.pause_limit_key(&task_type, &key, duration).await?;
            // Ignores errors of `ListLimitKeys`: the caller may be allowed to pause the key, but not to list keys.
            let request = ListLimitKeysRequest { task_type: task_type.clone(), page_size: 1_000, ..Default::default() };
            if let Ok(page) = client.task_types().list_limit_keys(request).await.map(tonic::Response::into_inner) {
                // Several stores may have the key.
                let listed = page.limit_keys.into_iter().filter(|listed| listed.limit_key == key);
                let listed = listed.reduce(|all, other| LimitKey {
                    waiting_count: all.waiting_count + other.waiting_count,
                    running_count: all.running_count + other.running_count,
                    ..all
                });
                note(paused(&task_type, &key, listed.as_ref(), page.next_page_token.is_empty()));
            }
            Ok(())
        }
        Command::Resume(KeyArgs { task_type, key }) => {
            task_type::must_exist(&client, &*task_type).await?;
            Ok(client.resume_limit_key(task_type, key).await?)
        }
    })
}

/// Formats the report of a pause. It names the numbers of affected jobs, so that the user notices a mistyped limit key.
fn paused(task_type: &str, name: &str, key: Option<&LimitKey>, is_all: bool) -> String {
    let jobs = match key.map(|key| (key.waiting_count, key.running_count)) {
        Some((0, 0)) => ": no job has this key now".into(),
        Some((waiting, running)) => format!(": {waiting} waiting, {running} running"),
        None if is_all => ": no job has this key now".into(),
        // The limit key is on a later page of the list, so the numbers of its jobs are unknown.
        None => String::new(),
    };
    format!("limit key {name:?} of {task_type} is paused{jobs}")
}

fn describe(key: &LimitKey) -> String {
    let more = if key.waiting_count >= 1_000 { " or more" } else { "" };
    let paused = match (key.paused, text::timestamp(key.paused_until.as_ref())) {
        (false, _) => String::new(),
        (true, None) => ", paused".into(),
        (true, Some(time)) => format!(", paused until {}", text::time(time)),
    };
    let most = if key.max_running == 0 { String::new() } else { format!(", limit {}", key.max_running) };
    let store = if key.store.is_empty() { String::new() } else { format!(", in store {}", key.store) };
    let (name, waiting, running) = (escaped(&key.limit_key), key.waiting_count, key.running_count);
    format!("{name}: {waiting}{more} waiting, {running} running{most}{paused}{store}")
}
