//! `howdah retry`: runs dead and scheduled jobs again.

use std::{path::PathBuf, time::Duration};

use howdah_client::proto::{JobState, RetryJobsRequest, retry_jobs_request::Start};
use jiff::Timestamp;

use super::{
    context::Global,
    failure::Failure,
    input,
    output::note,
    selection::{Answer, Operation, Selection},
    values,
};

/// Run dead jobs, and jobs that wait for their next attempt, now or at a given time
///
/// A dead job has all of its attempts again. A scheduled job keeps its remaining attempts. Errors are kept. By id, any scheduled
/// job can be retried; by type, only scheduled jobs that have failed. A dead job stays dead if another job holds its key. Jobs
/// that were cancelled because a retried job had died wait for it again.
///
/// Prints the ids of the retried jobs, one per line. The exit status is 1 if a job was not retried.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah retry 17 18
  howdah retry 17 --file corrected.json               # with a new payload
  howdah retry --type email.send --state dead
  howdah retry --type email.send --error 'no such host (exit status #)'
  howdah retry --type email.send --limit-key acme --newer-than 1d
  howdah retry --type email.send --run-at 2027-01-01T03:00:00Z")]
pub(super) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// With --type: retry only jobs in this state: dead or scheduled
    #[arg(long, value_name = "STATE", requires = "of_type", value_parser = ["dead", "scheduled"])]
    state: Option<String>,
    /// Run the jobs after this time instead of now, such as 90s, 5m, 2h 30m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    delay: Option<Duration>,
    /// Run the jobs at this time instead of now, such as 2027-01-01T03:00:00Z; a time without a zone is UTC
    #[arg(long, value_name = "TIME", conflicts_with = "delay", value_parser = values::time)]
    run_at: Option<Timestamp>,
    /// Replace the payload of one job; - reads stdin
    #[arg(long, value_name = "PAYLOAD", conflicts_with_all = ["file", "of_type"])]
    payload: Option<String>,
    /// Replace the payload of one job with the contents of this file
    #[arg(long, value_name = "FILE", conflicts_with = "of_type")]
    file: Option<PathBuf>,
    /// Print one JSON object per job: id, retried
    #[arg(long)]
    json: bool,
}

const RETRIED: Operation = Operation { done: "retried", otherwise: "it is neither dead nor scheduled" };

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let payload = input::replacement(args.file.as_deref(), args.payload.as_deref()).await?;
        let start = match (args.run_at, args.delay) {
            (Some(at), _) => Some(Start::RunAt(std::time::SystemTime::from(at).into())),
            (None, Some(delay)) => Some(Start::Delay(
                delay.try_into().map_err(|_| Failure::usage("--delay is too long: it is at most 3650 days"))?,
            )),
            (None, None) => None,
        };
        let state = match args.state.as_deref() {
            Some("dead") => JobState::Dead,
            Some(_) => JobState::Scheduled,
            None => JobState::Unspecified,
        };
        let template = RetryJobsRequest { start, payload: payload.map(Into::into), ..RetryJobsRequest::default() };
        let call = async |filter, page_token| {
            let request = RetryJobsRequest { filter: Some(filter), page_token, ..template.clone() };
            let answer = client.retry_jobs(request).await?;
            if !answer.revived_ids.is_empty() {
                let ids = answer.revived_ids.iter().map(i64::to_string).collect::<Vec<_>>().join(" ");
                note(format_args!("these cancelled jobs wait for the retried jobs again: {ids}"));
            }
            Ok(Answer { done: answer.retried_ids, key_held: answer.key_held_ids, next: answer.next_page_token })
        };
        args.selection.apply(&client, state as i32, args.json, &RETRIED, call).await
    })
}
