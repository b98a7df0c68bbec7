//! `howdah store drain` and `open`: closes a store to new jobs and waits for its jobs to end, or opens it again.

use std::time::Duration;

use howdah_client::{
    Client,
    proto::{Store, StoreState, TaskTypeCounts},
};

use crate::commands::{
    context::Global,
    failure::Failure,
    output::{self, note},
};

/// Interval at which the command polls the broker for unfinished jobs. Brokers do not count jobs more often.
const PACE: Duration = Duration::from_secs(1);

/// Close a store to new jobs, and wait until its jobs have ended
///
/// No job can then be enqueued in the store, by gRPC, HTTP or the SQL functions in its database, and its schedules do not fire.
/// New task types are placed in other stores. Existing jobs continue: they run, are retried, and go to their next stage or
/// fallback. Dead jobs stay.
///
/// The store stays closed after this command, even after Ctrl-C. `howdah store open` opens it. If the broker has only this store,
/// no job can be enqueued at all until then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store drain mail --reason 'moves to another machine'
  howdah store drain mail --no-wait
  howdah store open mail")]
pub(in crate::commands) struct DrainArgs {
    /// Name of the store, as shown by `howdah store list`
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not wait until the jobs have ended
    #[arg(long)]
    no_wait: bool,
    /// Print the store as one JSON object at the end: the message Store
    #[arg(long)]
    json: bool,
}

/// Open a store to new jobs again
///
/// Schedules of the store fire again. Each schedule handles missed times as defined in its policy.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store open mail")]
pub(in crate::commands) struct OpenArgs {
    /// Name of the store, as shown by `howdah store list`
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the store as one JSON object: the message Store
    #[arg(long)]
    json: bool,
}

pub(super) fn drain(args: &DrainArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut store = client.drain_store(&args.name).await?;
        note(format!("store {} is closed to new jobs; `howdah store open {}` opens it", args.name, args.name));
        if client.list_stores("").await?.len() == 1 {
            note("the broker has no other store: no job can be enqueued until this store is open again");
        }
        if !args.no_wait {
            store = until_empty(&client, store).await?;
        }
        if args.json { output::message("Store", &store) } else { Ok(()) }
    })
}

/// Reports the remaining jobs until all jobs have ended.
async fn until_empty(client: &Client, mut store: Store) -> Result<Store, Failure> {
    let mut printed = String::new();
    loop {
        let text = match store.state() {
            StoreState::Closed if !store.has_unfinished_jobs => {
                note("all jobs of the store have ended");
                return Ok(store);
            }
            StoreState::Closed => format!("jobs left: {}", rest(store.counts.unwrap_or_default())),
            StoreState::Unreachable => "the database of the store cannot be reached; waiting for it".to_owned(),
            _ => {
                return Err(Failure::failed(format!(
                    "store {} was opened again before all its jobs had ended",
                    store.name
                )));
            }
        };
        if text != printed {
            note(&text);
            printed = text;
        }
        tokio::time::sleep(PACE).await;
        let name = store.name.clone();
        store = client.list_stores(&name).await?.pop().unwrap_or_default();
    }
}

/// Numbers of jobs that have not ended, at the last count, as text.
fn rest(counts: TaskTypeCounts) -> String {
    let parts = [
        (counts.ready, "ready"),
        (counts.leased, "leased"),
        (counts.scheduled, "scheduled"),
        (counts.waiting, "waiting"),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    if parts.is_empty() { "the last jobs".into() } else { parts.join(", ") }
}

pub(super) fn open(args: &OpenArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let store = client.open_store(&args.name).await?;
        if args.json {
            return output::message("Store", &store);
        }
        note(format!("store {} is open to new jobs", args.name));
        Ok(())
    })
}
