//! `howdah release`: takes running jobs from their workers.

use std::collections::HashSet;

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    text, values,
};

/// The most ids in a call: as many as every cluster accepts, whatever its `batch` is.
const BATCH: usize = 1_000;

/// Take running jobs from their workers, such as jobs that hang
///
/// The attempts do not count, and the jobs are ready again at once. With --fail the attempts have failed, and the jobs
/// are retried by their retry policies, or dead. The workers are told to stop, and what they say about the jobs later
/// does not count. Prints the ids of the jobs, one per line. The exit status is 1 if no worker had one of them. To end a
/// job instead, use `howdah cancel`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah release 17 18
  howdah release 17 --fail 'hung for two hours'
  howdah jobs email.send --state leased             # which jobs run, and since when")]
pub(super) struct Args {
    /// Ids of the jobs
    #[arg(value_name = "ID", required = true, value_parser = values::id)]
    ids: Vec<i64>,
    /// The attempts have failed, with this error
    #[arg(long, value_name = "ERROR")]
    fail: Option<String>,
    /// Print one JSON object for each id: id, released
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut output = Output::new();
        let mut missed = 0;
        for batch in args.ids.chunks(BATCH) {
            let ended = client.end_leases(batch.iter().copied(), args.fail.clone()).await?;
            let ended: HashSet<i64> = ended.into_iter().collect();
            for id in batch {
                let done = ended.contains(id);
                missed += usize::from(!done);
                match (args.json, done) {
                    (true, _) => output.json(&serde_json::json!({"id": id, "released": done}))?,
                    (false, true) => output.line(id)?,
                    (false, false) => note(format_args!("job {id} was not released: no worker has it")),
                }
            }
        }
        output.flush()?;
        if missed > 0 {
            return Err(Failure::failed(format!("{missed} of {} not released", text::jobs_were(args.ids.len()))));
        }
        Ok(())
    })
}
