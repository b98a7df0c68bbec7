//! `howdah store drain`: a store takes no new jobs, and its jobs are worked off.

use std::time::Duration;

use howdah_client::{
    Client,
    proto::{Store, StoreState},
};

use super::shown;
use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
};

/// How often to ask whether jobs are left: as often as brokers count them.
const PACE: Duration = Duration::from_secs(1);

/// Close a store to new jobs, and wait until the jobs that it has are worked off
///
/// From then on nothing is enqueued in the store: not by gRPC or HTTP, not by the SQL functions in its database, and its
/// schedules rest. Task types that are new get their home in another store. Jobs that are there go on: they run, are retried,
/// go to their next stage or fallback. Dead jobs stay.
///
/// The store stays closed when this command ends, also after Ctrl-C: howdah store open opens it. If it is the only store,
/// nothing can be enqueued at all until then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah store drain mail --reason 'moves to another machine'
  howdah store drain mail --no-wait
  howdah store open mail")]
pub(in crate::commands) struct Args {
    /// The store, as `howdah store list` shows it
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not wait for the jobs that are there
    #[arg(long)]
    no_wait: bool,
    /// Print the store as a JSON object at the end
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut store = client.drain_store(&args.name).await?;
        note(format!("store {} is closed to new jobs; howdah store open {} opens it", args.name, args.name));
        if client.list_stores("").await?.len() == 1 {
            note("it is the only store of this broker: nothing can be enqueued until it is open again");
        }
        if !args.no_wait {
            store = until_empty(&client, store).await?;
        }
        if args.json {
            let mut output = Output::new();
            output.json(&shown::json(&store))?;
            return output.flush();
        }
        Ok(())
    })
}

/// Shows what is left, until nothing is.
async fn until_empty(client: &Client, mut store: Store) -> Result<Store, Failure> {
    let mut seen = String::new();
    loop {
        let said = match store.state() {
            StoreState::Closed if !store.has_unfinished_jobs => {
                note("all of its jobs have ended");
                return Ok(store);
            }
            StoreState::Closed => format!("left: {}", shown::rest(store.counts.unwrap_or_default())),
            StoreState::Away => "its database cannot be reached; waiting for it".to_owned(),
            _ => return Err(Failure::failed(format!("store {} was opened meanwhile", store.name))),
        };
        if said != seen {
            note(&said);
            seen = said;
        }
        tokio::time::sleep(PACE).await;
        let name = store.name.clone();
        store = client.list_stores(&name).await?.pop().unwrap_or_default();
    }
}
