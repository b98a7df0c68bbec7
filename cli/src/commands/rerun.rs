//! `howdah rerun`: runs finished jobs again, as new jobs.

use std::{path::PathBuf, time::Duration};

use howdah_client::proto::{RerunJob, RerunJobsRequest, RerunOutcome, rerun_jobs_request::Start};
use jiff::Timestamp;
use serde_json::json;

use super::{
    context::Global,
    failure::Failure,
    input,
    output::{Output, note},
    selection::BATCH,
    text, values,
};

/// Run finished jobs again, as new jobs
///
/// A new job has the type, payload, headers, key, tags, priority, attempts, retry policy, limit key, fair key and stages of the
/// finished job, which is its parent. A job that went to its fallback runs again with its first type, and a job with stages
/// from its first stage. The finished job stays in the history. For dead jobs, use howdah retry.
///
/// Prints the ids of the new jobs, one per line. The exit status is 1 if a job was not run again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah rerun 17 18
  howdah rerun 17 --file corrected.json               # with a new payload
  howdah rerun 17 --delay 1h
  howdah rerun 17 18 --request-key incident-42        # once, even if the command is repeated")]
pub(super) struct Args {
    /// Ids of finished jobs
    #[arg(value_name = "ID", required = true, value_parser = values::id)]
    ids: Vec<i64>,
    /// Run the new jobs after this time instead of now, such as 90s, 5m, 2h 30m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    delay: Option<Duration>,
    /// Run the new jobs at this time instead of now, such as 2027-01-01T03:00:00Z; a time without a zone is UTC
    #[arg(long, value_name = "TIME", conflicts_with = "delay", value_parser = values::time)]
    run_at: Option<Timestamp>,
    /// Use this payload for one job; - reads stdin
    #[arg(long, value_name = "PAYLOAD", conflicts_with = "file")]
    payload: Option<String>,
    /// Use the contents of this file as the payload of one job
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Run each job again only once for this key, even if the command is repeated within 24 hours
    #[arg(long, value_name = "KEY")]
    request_key: Option<String>,
    /// Print one JSON object per job: id, outcome, job (the new job, or the holder of the key), problem
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let payload = input::replacement(args.file.as_deref(), args.payload.as_deref()).await?;
        let template = RerunJobsRequest {
            ids: Vec::new(),
            start: values::start(args.run_at, args.delay, Start::RunAt, Start::Delay)?,
            payload: payload.map(Into::into),
            request_key: args.request_key.clone().unwrap_or_default(),
        };
        let mut output = Output::new();
        let (mut count, mut missed) = (0, 0);
        for ids in args.ids.chunks(BATCH) {
            let answer = client.rerun_jobs(RerunJobsRequest { ids: ids.to_vec(), ..template.clone() }).await?;
            count += answer.jobs.len();
            for job in &answer.jobs {
                missed += usize::from(job.new_id == 0);
                print(job, args.json, &mut output)?;
            }
            output.flush()?;
        }
        match missed {
            0 => Ok(()),
            missed => Err(Failure::failed(format!("{missed} of {} not run again", text::jobs_were(count)))),
        }
    })
}

fn print(job: &RerunJob, json: bool, output: &mut Output) -> Result<(), Failure> {
    if json {
        let name = match job.outcome() {
            RerunOutcome::Unspecified => "refused".into(),
            outcome => text::enum_word(outcome.as_str_name(), "RERUN_OUTCOME_"),
        };
        let other = [job.new_id, job.holder_id].into_iter().find(|id| *id != 0);
        let problem = Some(&job.problem).filter(|problem| !problem.is_empty());
        return output.json(&json!({"id": job.id, "outcome": name, "job": other, "problem": problem}));
    }
    match job.new_id {
        0 => {
            note(format_args!("job {} was not run again: {}", job.id, job.problem));
            Ok(())
        }
        id => output.line(id),
    }
}
