//! `howdah bulk show`: shows one bulk operation, once or until it ends.

use std::time::Duration;

use howdah_client::{
    Client,
    proto::{Bulk, BulkState},
};
use howdah_core::logging::escaped;

use super::shown;
use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    text, values,
};

/// Poll interval for the progress.
const PACE: Duration = Duration::from_millis(500);

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
pub(in crate::commands) struct Args {
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

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut bulk = client.get_bulk(args.id).await?;
        if args.wait {
            bulk = to_end(&client, bulk).await?;
        }
        let mut output = Output::new();
        if args.json {
            output.message("Bulk", &bulk)?;
        } else {
            for line in lines(&bulk) {
                output.line(line)?;
            }
        }
        output.flush()?;
        if args.wait { succeeded(&bulk) } else { Ok(()) }
    })
}

fn lines(bulk: &Bulk) -> Vec<String> {
    let time = |time: Option<&_>| text::timestamp(time).map(text::time).unwrap_or_default();
    let by = match escaped(&bulk.principal) {
        principal if principal.is_empty() => String::new(),
        principal => format!(" by {principal}"),
    };
    let mut lines = vec![
        shown::progress(bulk),
        format!("what: {}", shown::what(&bulk.spec.clone().unwrap_or_default())),
        format!("started: {}{by}", time(bulk.create_time.as_ref())),
    ];
    let rest = [
        ("ended", time(bulk.end_time.as_ref())),
        ("reason", escaped(&bulk.reason).into_owned()),
        ("broker", escaped(&bulk.broker).into_owned()),
        ("problem", text::summary(&bulk.problem)),
    ];
    lines.extend(rest.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| format!("{name}: {text}")));
    lines
}

/// Prints the progress until the bulk operation ends.
pub(super) async fn to_end(client: &Client, mut bulk: Bulk) -> Result<Bulk, Failure> {
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
pub(super) fn succeeded(bulk: &Bulk) -> Result<(), Failure> {
    match (bulk.state(), bulk.failed_count) {
        (BulkState::Completed, 0) => Ok(()),
        (BulkState::Completed, failed) => {
            Err(Failure::failed(format!("{failed} jobs could not be changed; the last error: {}", bulk.problem)))
        }
        _ => Err(Failure::failed(format!("bulk operation {} was cancelled", bulk.id))),
    }
}
