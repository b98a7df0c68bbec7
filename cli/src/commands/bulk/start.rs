//! `howdah bulk start`: asks for confirmation and starts a bulk operation.

use howdah_client::{
    Client,
    proto::{Bulk, BulkSpec},
};

use super::{Spec, follow, shown};
use crate::commands::{
    confirm,
    context::Global,
    failure::Failure,
    output::{Output, note},
    task_type,
};

/// Start a bulk operation: change many jobs in the background
///
/// Shows the number of jobs and three of them, and asks first. Brokers then change each job once, in small transactions, and slowly
/// enough that other work continues. If a broker stops, another one continues. Only jobs enqueued before the start are changed.
/// Prints the id of the bulk operation. With --wait, the exit status is 1 if it was cancelled, or if jobs could not be changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah bulk start retry --type email.send --error 'no such host'
  howdah bulk start cancel --type report --state scheduled --yes --wait
  howdah bulk start cancel --type report --fair-key acme --older-than 7d
  howdah bulk start reprioritize --priority -5 --type report --reason 'for the board'
  howdah bulk start move --type email.send --to email.slow --state ready
  howdah bulk start set --type report --state scheduled --delay 0s --add-tag hurried
  howdah bulk start retry --type email.send --rate 100    # slowly, for a mail server that has just recovered

Then:
  howdah bulk list                                        # progress
  howdah bulk pause 1
  howdah bulk resume 1
  howdah bulk cancel 1                                    # changed jobs stay changed
  howdah bulk start undo 1                                # restores jobs that bulk operation 1 cancelled or discarded")]
pub(in crate::commands) struct Args {
    #[command(flatten)]
    spec: Spec,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Wait until the bulk operation ends, and show its progress on stderr
    #[arg(long)]
    wait: bool,
    /// Print one JSON object: the message Bulk
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let spec = args.spec.spec()?;
    global.with_client(async |client| {
        if !args.yes && !confirmed(&client, &spec).await? {
            return Err(Failure::failed("nothing was changed"));
        }
        let mut bulk = client.start_bulk(spec).await?;
        if args.wait {
            bulk = follow::to_end(&client, bulk).await?;
        } else {
            note(shown::progress(&bulk));
        }
        print(&bulk, args.json)?;
        if args.wait { follow::succeeded(&bulk) } else { Ok(()) }
    })
}

fn print(bulk: &Bulk, json: bool) -> Result<(), Failure> {
    let mut output = Output::new();
    if json {
        output.message("Bulk", bulk)?;
    } else {
        output.line(bulk.id)?;
    }
    output.flush()
}

/// Shows a preview of the bulk operation and asks for confirmation.
async fn confirmed(client: &Client, spec: &BulkSpec) -> Result<bool, Failure> {
    confirm::needs_terminal("check with howdah bulk preview, then use --yes")?;
    let preview = client.preview_bulk(spec.clone()).await?;
    if preview.selected_count == 0 && spec.undo_bulk_id == 0 {
        task_type::must_exist(client, &*spec.task_type).await?;
    }
    shown::preview(spec, &preview).into_iter().for_each(note);
    confirm::ask().await
}
