//! `howdah bulk list`: lists bulk operations, newest first.

use howdah_client::proto::ListBulksRequest;
use howdah_core::logging::escaped;
use jiff::Timestamp;

use super::shown;
use crate::commands::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    table::{Align, Table},
    task_type, text,
};

/// List bulk operations with their progress, newest first
///
/// Ended bulk operations are listed for as long as history is kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah bulk list
  howdah bulk list email.send --open")]
pub(in crate::commands) struct Args {
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

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let task_type = args.task_type.clone().unwrap_or_default();
    let request = ListBulksRequest { task_type, open_only: args.open, ..ListBulksRequest::default() };
    global.with_client(async |client| {
        let bulks = client.list_bulks(request, args.limit as usize).await?;
        let mut output = Output::new();
        if args.json {
            output.messages("Bulk", &bulks)?;
            return output.flush();
        }
        if bulks.is_empty() {
            task_type::must_exist(&client, args.task_type.as_deref()).await?;
            let of = args.task_type.as_ref().map_or_else(String::new, |name| format!(" of {}", escaped(name)));
            let open = if args.open { " that are running or paused" } else { "" };
            note(format_args!("no bulk operations{of}{open}: start one with `howdah bulk start`"));
            return Ok(());
        }
        let right = |name| (name, Align::Right);
        let mut table = Table::new([
            right("ID"),
            ("STATE", Align::Left),
            right("DONE"),
            right("SELECTED"),
            right("SKIPPED"),
            right("FAILED"),
            ("STARTED", Align::Left),
            ("BY", Align::Left),
            ("WHAT", Align::Left),
        ]);
        let now = Timestamp::now();
        for bulk in &bulks {
            let started = text::timestamp(bulk.create_time.as_ref()).map(|time| text::relative(time, now));
            table.row_of_store(
                [
                    bulk.id.to_string(),
                    shown::state(bulk),
                    bulk.done_count.to_string(),
                    format!("{}{}", if bulk.has_more { ">" } else { "" }, bulk.selected_count),
                    bulk.skipped_count.to_string(),
                    bulk.failed_count.to_string(),
                    started.unwrap_or_default(),
                    escaped(&bulk.principal).into_owned(),
                    shown::what(&bulk.spec.clone().unwrap_or_default()),
                ],
                &bulk.store,
            );
        }
        output.line(table)?;
        output.flush()
    })
}
