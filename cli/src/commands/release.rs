//! `howdah release`: takes running jobs away from their workers.

use std::collections::HashSet;

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    text, values,
};

/// Maximum number of ids per call. Every cluster accepts this many, because it is the minimum of the setting `batch`.
const BATCH: usize = 1_000;

/// Take running jobs away from their workers, for example jobs that hang
///
/// The attempts do not count, and the jobs are ready again immediately. With --fail the attempts fail, and the retry policies
/// apply. The brokers tell the workers to stop, and ignore later outcomes of these attempts. Prints the ids of the jobs, one per
/// line. The exit status is 1 if a job was not leased. To end a job instead, use `howdah cancel`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah release 17 18
  howdah release 17 --fail 'hung for two hours'
  howdah jobs email.send --state leased             # running jobs, with their start")]
pub(super) struct Args {
    /// Ids of the jobs
    #[arg(value_name = "ID", required = true, value_parser = values::id)]
    ids: Vec<i64>,
    /// Fail the attempts with this error
    #[arg(long, value_name = "ERROR")]
    fail: Option<String>,
    /// Print one JSON object per id: id, released
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
                    (false, false) => note(format_args!("job {id} was not released: it is not leased")),
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
