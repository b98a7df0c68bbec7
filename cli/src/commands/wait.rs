//! `howdah wait`: waits until jobs are finished or dead.

use std::time::Duration;

use howdah_client::proto::{Job, JobState};
use howdah_core::logging::escaped;

use super::{
    context::Global,
    failure::Failure,
    output::{Output, note},
    text, values,
};

/// Wait until jobs are finished or dead, and show their results
///
/// Prints each job as soon as it has ended, with its result or its last error. The exit status is 1 if a job did not succeed or
/// did not end in time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah wait 17 18 --timeout 5m
  howdah wait $(howdah enqueue text.upper hello) --result     # a question and its answer")]
pub(super) struct Args {
    /// Ids of the jobs
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    /// Wait at most this long, up to 24h
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = values::duration)]
    timeout: Duration,
    /// Print only the results; text results get a final newline, other results are printed unchanged
    #[arg(long, conflicts_with = "json")]
    result: bool,
    /// Print one JSON object per job, as `howdah job`
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
                output.job(&job)?;
            } else if args.result {
                output.bytes(&job.result)?;
                if std::str::from_utf8(&job.result).is_ok_and(|text| !text.is_empty() && !text.ends_with('\n')) {
                    output.bytes(b"\n")?;
                }
                if let Some(error) = last_error(&job) {
                    note(format_args!("job {} is {}: {error}", job.id, text::state(job.state)));
                }
            } else {
                output.line(format_args!("job {}: {}", job.id, text::state(job.state)))?;
                if let Some(error) = last_error(&job) {
                    output.line(format_args!("  {error}"))?;
                }
                if !job.result.is_empty() {
                    output.line(text::payload_block(&job.result))?;
                }
            }
            output.flush()?;
        }
        match failed {
            0 => Ok(()),
            _ => Err(Failure::failed(format!("{failed} of {} jobs did not succeed", args.ids.len()))),
        }
    })
}

/// Returns the last error of a job that did not succeed, with control characters escaped.
fn last_error(job: &Job) -> Option<String> {
    let last = job.failures.last().filter(|_| job.state() != JobState::Succeeded)?;
    Some(escaped(&last.error).to_string())
}
