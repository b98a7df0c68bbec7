//! `howdah retry`: once more.

use std::{path::PathBuf, time::Duration};

use howdah_client::proto::{JobState, RetryJobsRequest, retry_jobs_request::Start};
use jiff::Timestamp;

use super::{
    context::Global,
    failure::Failure,
    input::Input,
    which::{Answer, Verb, Which},
};

/// Run dead jobs, and those that back off, now or at a time
///
/// Dead jobs get their attempts anew; jobs that back off have what is left of theirs. Errors are kept. By
/// id, any scheduled job can be; by type, only those that failed before. A dead job whose key another job
/// has stays dead. Prints the ids, one a line; ids that were left out make the exit status 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah retry 17 18
  howdah retry 17 --file corrected.json               # with another payload
  howdah retry --type email.send --state dead
  howdah retry --type email.send --error 'no such host (exit status #)'
  howdah retry --type email.send --at 2027-01-01T03:00:00Z")]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Of the type, only dead jobs, or only those that back off: dead or scheduled
    #[arg(long, value_name = "STATE", requires = "of_type", value_parser = ["dead", "scheduled"])]
    state: Option<String>,
    /// Not now, but this long from now, such as 90s, 5m, 2h 30m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    delay: Option<Duration>,
    /// Not now, but at this time, such as 2027-01-01T03:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<Timestamp>,
    /// Another payload, for one job; - reads standard input
    #[arg(long, value_name = "PAYLOAD", conflicts_with_all = ["file", "of_type"])]
    payload: Option<String>,
    /// Another payload, from a file
    #[arg(long, value_name = "FILE", conflicts_with = "of_type")]
    file: Option<PathBuf>,
    /// Print one JSON object for each job: id, retried
    #[arg(long)]
    json: bool,
}

const RETRIED: Verb = Verb { done: "retried", otherwise: "it is neither dead nor scheduled" };

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let payload = match (&args.file, &args.payload) {
            (Some(path), _) => Some(Input::open(path).await?.all().await?),
            (None, Some(argument)) if argument == "-" => Some(Input::stdin().all().await?),
            (None, argument) => argument.clone().map(String::into_bytes),
        };
        let start = match (args.at, args.delay) {
            (Some(at), _) => Some(Start::RunAt(std::time::SystemTime::from(at).into())),
            (None, Some(delay)) => Some(Start::Delay(
                delay.try_into().map_err(|_| Failure::usage("--delay is longer than any that is allowed"))?,
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
            Ok(Answer { done: answer.retried_ids, key_held: answer.key_held_ids, next: answer.next_page_token })
        };
        args.which.work_off(state as i32, args.json, &RETRIED, call).await
    })
}
