//! `howdah bulk preview`: shows which jobs a bulk operation would change.

use super::{Spec, shown};
use crate::commands::{context::Global, failure::Failure, output::Output, task_type};

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
pub(in crate::commands) struct Args {
    #[command(flatten)]
    spec: Spec,
    /// Print one JSON object: the message PreviewBulkResponse
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let spec = args.spec.spec()?;
    global.with_client(async |client| {
        let preview = client.preview_bulk(spec.clone()).await?;
        if preview.selected_count == 0 {
            task_type::must_exist(&client, args.spec.task_type.as_deref()).await?;
        }
        let mut output = Output::new();
        if args.json {
            output.message("PreviewBulkResponse", &preview)?;
        } else {
            for line in shown::preview(&spec, &preview) {
                output.line(line)?;
            }
        }
        output.flush()
    })
}
