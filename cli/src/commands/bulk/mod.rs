//! `howdah bulk …`: changes to many jobs, made by brokers in the background.

mod shown; // bulk operations as text
mod spec; // the operation and the jobs, as flags

use std::time::Duration;

use howdah_client::{
    Client,
    proto::{Bulk, BulkSpec, BulkState, ListBulksRequest},
};
use jiff::Timestamp;

use self::spec::Spec;
use super::{
    context::Global,
    failure::Failure,
    input,
    output::{self, note},
    table::Table,
    task_type, text, values,
};

/// Poll interval for the progress.
const PACE: Duration = Duration::from_millis(500);

subcommands! { |args, global|
    Preview(PreviewArgs) => preview(&args, global),
    Start(StartArgs) => start(&args, global),
    /// Pause a bulk operation: jobs not yet changed stay as they are until it is resumed
    Pause(IdArgs) => change(global, async |client| client.pause_bulk(args.id).await),
    /// Resume a paused bulk operation where it stopped
    Resume(IdArgs) => change(global, async |client| client.resume_bulk(args.id).await),
    /// Cancel a bulk operation: jobs already changed stay changed; see howdah bulk start undo
    Cancel(IdArgs) => change(global, async |client| client.cancel_bulk(args.id).await),
    List(ListArgs) => list(&args, global),
    Show(ShowArgs) => show(&args, global),
}

#[derive(Debug, clap::Args)]
pub(super) struct IdArgs {
    /// Id of the bulk operation
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
}

/// Count the jobs that a bulk operation would change, and show three of them
///
/// Changes nothing. The count stops at 10,000 and is then shown as "more than 10000".
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah bulk preview retry --type email.send --error 'no such host'
  howdah bulk preview cancel --type report --state scheduled
  howdah bulk preview reprioritize --priority -5 --type report
  howdah bulk preview undo 1
  howdah bulk preview move --type email.send --to email.slow --state ready
  howdah bulk preview set --type report --state dead --max-attempts 20")]
pub(in crate::commands) struct PreviewArgs {
    #[command(flatten)]
    spec: Spec,
    /// Print one JSON object: the message PreviewBulkResponse
    #[arg(long)]
    json: bool,
}

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
pub(in crate::commands) struct StartArgs {
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

/// List bulk operations with their progress, newest first
///
/// Ended bulk operations are listed for as long as history is kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah bulk list
  howdah bulk list email.send --open")]
pub(in crate::commands) struct ListArgs {
    /// List only bulk operations on this task type
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// List only running and paused bulk operations
    #[arg(long)]
    open: bool,
    /// Show at most this many, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Print one JSON object per bulk operation: the message Bulk
    #[arg(long)]
    json: bool,
}

/// Show a bulk operation: its jobs, its progress, its initiator and reason
///
/// With --wait, follows the bulk operation until it ends. The exit status is then 1 if it was cancelled, or if jobs could not be
/// changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah bulk show 1
  howdah bulk show 1 --wait
  howdah bulk show 1 --json | jq -r .done_count")]
pub(in crate::commands) struct ShowArgs {
    /// Id of the bulk operation
    #[arg(value_name = "ID", value_parser = values::id)]
    id: i64,
    /// Wait until the bulk operation ends, and show its progress on stderr
    #[arg(long)]
    wait: bool,
    /// Print one JSON object: the message Bulk
    #[arg(long)]
    json: bool,
}

fn preview(args: &PreviewArgs, global: &Global) -> Result<(), Failure> {
    let spec = args.spec.spec()?;
    global.with_client(async |client| {
        let preview = client.preview_bulk(spec.clone()).await?;
        if preview.selected_count == 0 {
            task_type::must_exist(&client, args.spec.task_type.as_deref()).await?;
        }
        output::show(args.json, "PreviewBulkResponse", &preview, || shown::preview(&spec, &preview))
    })
}

fn start(args: &StartArgs, global: &Global) -> Result<(), Failure> {
    let spec = args.spec.spec()?;
    global.with_client(async |client| {
        if !args.yes && !confirmed(&client, &spec).await? {
            return Err(Failure::failed("nothing was changed"));
        }
        let mut bulk = client.start_bulk(spec).await?;
        if args.wait {
            bulk = to_end(&client, bulk).await?;
        } else {
            note(shown::progress(&bulk));
        }
        output::show(args.json, "Bulk", &bulk, || bulk.id)?;
        if args.wait { succeeded(&bulk) } else { Ok(()) }
    })
}

/// Shows a preview of the bulk operation and asks for confirmation.
async fn confirmed(client: &Client, spec: &BulkSpec) -> Result<bool, Failure> {
    input::needs_terminal("check with howdah bulk preview, then use --yes")?;
    let preview = client.preview_bulk(spec.clone()).await?;
    if preview.selected_count == 0 && spec.undo_bulk_id == 0 {
        task_type::must_exist(client, &*spec.task_type).await?;
    }
    shown::preview(spec, &preview).lines().for_each(note);
    input::is_confirmed().await
}

/// Pauses, resumes or cancels a bulk operation.
fn change(global: &Global, call: impl AsyncFnOnce(Client) -> howdah_client::Result<Bulk>) -> Result<(), Failure> {
    global.with_client(async |client| {
        note(shown::progress(&call(client).await?));
        Ok(())
    })
}

fn list(args: &ListArgs, global: &Global) -> Result<(), Failure> {
    let task_type = args.task_type.clone().unwrap_or_default();
    let request = ListBulksRequest { task_type, open_only: args.open, ..ListBulksRequest::default() };
    global.with_client(async |client| {
        let bulks = client.list_bulks(request, args.limit as usize).await?;
        if bulks.is_empty() && !args.json {
            task_type::must_exist(&client, args.task_type.as_deref()).await?;
            let of = args.task_type.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
            let open = if args.open { " that are running or paused" } else { "" };
            note(format_args!("no bulk operations{of}{open}: start one with `howdah bulk start`"));
            return Ok(());
        }
        output::list(args.json, "Bulk", &bulks, || table(&bulks, Timestamp::now()))
    })
}

fn table(bulks: &[Bulk], now: Timestamp) -> Table<'_, Bulk> {
    Table::new(bulks)
        .store(|bulk| &bulk.store)
        .right("ID", |bulk| bulk.id)
        .left("STATE", shown::state)
        .right("DONE", |bulk| bulk.done_count)
        .right("SELECTED", |bulk| format!("{}{}", if bulk.has_more { ">" } else { "" }, bulk.selected_count))
        .right("SKIPPED", |bulk| bulk.skipped_count)
        .right("FAILED", |bulk| bulk.failed_count)
        .left("STARTED", |bulk| text::ago(bulk.create_time.as_ref(), now))
        .left("BY", |bulk| &bulk.principal)
        .left("WHAT", |bulk| shown::what(&bulk.spec.clone().unwrap_or_default()))
}

fn show(args: &ShowArgs, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut bulk = client.get_bulk(args.id).await?;
        if args.wait {
            bulk = to_end(&client, bulk).await?;
        }
        output::show(args.json, "Bulk", &bulk, || shown::describe(&bulk))?;
        if args.wait { succeeded(&bulk) } else { Ok(()) }
    })
}

/// Prints the progress until the bulk operation ends.
async fn to_end(client: &Client, mut bulk: Bulk) -> Result<Bulk, Failure> {
    let mut seen = String::new();
    loop {
        let progress = shown::progress(&bulk);
        if progress != seen {
            note(&progress);
            seen = progress;
        }
        if !matches!(bulk.state(), BulkState::Running | BulkState::Paused) {
            return Ok(bulk);
        }
        tokio::time::sleep(PACE).await;
        bulk = client.get_bulk(bulk.id).await?;
    }
}

/// Fails if the bulk operation was cancelled, or could not change all jobs.
fn succeeded(bulk: &Bulk) -> Result<(), Failure> {
    match (bulk.state(), bulk.failed_count) {
        (BulkState::Completed, 0) => Ok(()),
        (BulkState::Completed, failed) => {
            Err(Failure::failed(format!("{failed} jobs could not be changed; the last error: {}", bulk.problem)))
        }
        _ => Err(Failure::failed(format!("bulk operation {} was cancelled", bulk.id))),
    }
}
