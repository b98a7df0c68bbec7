//! `howdah wait`: until jobs have finished.

use std::time::Duration;

use howdah_client::proto::JobState;

use super::{
    context::Global,
    failure::Failure,
    json::{JobJson, state_name},
    output::Output,
    text,
};

/// Wait until jobs have finished, and show how
///
/// Prints each when it has finished or died, the first to finish first, with its result. The exit status is 1 if one of them
/// has not succeeded, or not all have finished in time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah wait 17 18 --timeout 5m
  howdah wait $(howdah enqueue text.upper hello) --result     # a question and its answer")]
pub(super) struct Args {
    /// Ids of jobs
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    /// Wait at most so long, up to 24h
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Print the results alone, as they are
    #[arg(long, conflicts_with = "json")]
    result: bool,
    /// Print one JSON object for each job, with payload and result
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut output = Output::new();
        let mut failed = 0;
        let mut ended = client.wait_jobs(args.ids.iter().copied(), args.timeout).await?;
        while let Some(job) = ended.next().await? {
            failed += usize::from(job.state() != JobState::Succeeded);
            if args.json {
                output.json(&JobJson::of(&job, true))?;
            } else if args.result {
                output.bytes(&job.result)?;
            } else {
                output.line(format_args!("job {}: {}", job.id, state_name(&job)))?;
                if !job.result.is_empty() {
                    output.line(text::payload_block(&job.result))?;
                }
            }
            output.flush()?;
        }
        match failed {
            0 => Ok(()),
            _ => Err(Failure::failed(format!("{failed} of {} jobs have not succeeded", args.ids.len()))),
        }
    })
}
