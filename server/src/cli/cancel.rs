//! `howdah cancel`: jobs that are not wanted any more.

use std::collections::HashSet;

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
};

/// The broker takes so many ids in a call.
const BATCH: usize = 10_000;

/// Cancel jobs that are not finished
///
/// A job that runs is taken from its worker, who is told to stop. Prints the ids cancelled, one a
/// line; the others were finished or never existed, and make the exit status 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah cancel 17 18
  howdah jobs email.send --state ready --all --json | jq .id | xargs howdah cancel")]
pub(super) struct Args {
    /// Ids of jobs
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    /// Print one JSON object for each id: id, cancelled
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let Args { ids, json } = args;
    global.with_client(async |client| {
        let mut output = Output::new();
        let mut missed = 0;
        for batch in ids.chunks(BATCH) {
            let cancelled: HashSet<i64> = client.cancel_jobs(batch.iter().copied()).await?.into_iter().collect();
            for id in batch {
                let done = cancelled.contains(id);
                missed += usize::from(!done);
                match (json, done) {
                    (true, _) => output.json(&serde_json::json!({"id": id, "cancelled": done}))?,
                    (false, true) => output.line(id)?,
                    (false, false) => note(format_args!("job {id} was not cancelled: finished, or never existed")),
                }
            }
        }
        output.flush()?;
        if missed > 0 {
            Err(Failure::failed(format!("{missed} of {} jobs were not cancelled", ids.len())))
        } else {
            Ok(())
        }
    })
}
