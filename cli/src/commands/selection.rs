//! Commands that change jobs, selected by id or by type: `howdah cancel`, `retry`, `discard` and `release`.

use std::{collections::HashSet, ops::AsyncFn, path::PathBuf, time::Duration};

use howdah_client::{
    Client,
    proto::{
        CancelJobsRequest, DiscardJobsRequest, EndLeasesRequest, JobFilter, JobState, RetryJobsRequest,
        retry_jobs_request::Start,
    },
};
use jiff::Timestamp;
use serde_json::json;

use super::{
    conditions::Conditions,
    context::Global,
    failure::Failure,
    input, jobs,
    output::{Output, note},
    task_type, text, values,
};

/// Maximum number of ids per call. Every cluster accepts this many, because it is the minimum of the setting `batch`.
pub(super) const BATCH: usize = 1_000;
/// Reason why a job stays dead.
const KEY_HELD: &str = "another job holds its key";

/// Flags that select jobs by id or by type.
#[derive(Debug, clap::Args)]
struct Selection {
    /// Ids of the jobs
    #[arg(value_name = "ID", required_unless_present = "of_type", conflicts_with_all = ["of_type", "Conditions"], value_parser = values::id)]
    ids: Vec<i64>,
    /// Select jobs of this task type, instead of ids
    #[arg(id = "of_type", long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    /// With --type: select only jobs whose last error belongs to this group, as shown by `howdah errors`; an error text selects
    /// its group too, unless the worker reported a place
    #[arg(long = "error", value_name = "GROUP", requires = "of_type", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    error_group: Option<String>,
    #[command(flatten)]
    conditions: Conditions,
}

/// Cancel unfinished jobs
///
/// If a worker runs the job, the broker tells the worker to stop. Prints the ids of the cancelled jobs, one per line. The exit
/// status is 1 if a job was finished or never existed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah cancel 17 18
  howdah cancel --type email.send --state ready
  howdah cancel --type email.send --error 'no such host (exit status #)'
  howdah cancel --type email.send --tag batch-17 --older-than 2h
  howdah cancel --type email.send                     # all unfinished jobs, including dead jobs")]
pub(super) struct CancelArgs {
    #[command(flatten)]
    selection: Selection,
    /// With --type: cancel only jobs in this state: ready, leased, scheduled, waiting, dead
    #[arg(long, value_name = "STATE", requires = "of_type", value_parser = jobs::state)]
    state: Option<JobState>,
    /// Print one JSON object per id: id, cancelled
    #[arg(long)]
    json: bool,
}

/// Run dead jobs, and jobs that wait for their next attempt, now or at a given time
///
/// A dead job has all of its attempts again. A scheduled job keeps its remaining attempts. Errors are kept. By id, any
/// scheduled job can be retried; by type, only scheduled jobs that have failed. A dead job stays dead if another job holds its
/// key. Jobs that were cancelled when a retried job died wait for this job again.
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
pub(super) struct RetryArgs {
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

/// Discard dead jobs: move them to history
///
/// Prints the ids of the discarded jobs, one per line.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah discard 17 18
  howdah discard --type email.send --error 'no such host (exit status #)'
  howdah discard --type email.send --older-than 30d
  howdah discard --type email.send")]
pub(super) struct DiscardArgs {
    #[command(flatten)]
    selection: Selection,
    /// Print one JSON object per job: id, discarded
    #[arg(long)]
    json: bool,
}

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
  howdah release --type email.send --worker 0123456789abcdef
  howdah release --type email.send --older-than 2h --attempts-at-least 2
  howdah jobs email.send --state leased             # running jobs, with their start")]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    selection: Selection,
    /// Fail the attempts with this error
    #[arg(long, value_name = "ERROR")]
    fail: Option<String>,
    /// Print one JSON object per id: id, released
    #[arg(long)]
    json: bool,
}

pub(super) fn cancel(args: &CancelArgs, global: &Global) -> Result<(), Failure> {
    let report = Report::new(args.json, "cancelled", "it is finished or never existed");
    global.with_client(async |client| {
        let call = async |filter, page_token| {
            let request = CancelJobsRequest { filter: Some(filter), page_token, ids: Vec::new() };
            let answer = client.cancel_jobs_by(request).await?;
            Ok(Answer { done: answer.cancelled_ids, next: answer.next_page_token, ..Answer::default() })
        };
        args.selection.apply(&client, args.state.unwrap_or_default(), report, call).await
    })
}

pub(super) fn retry(args: &RetryArgs, global: &Global) -> Result<(), Failure> {
    let report = Report::new(args.json, "retried", "it is neither dead nor scheduled");
    let state = match args.state.as_deref() {
        Some("dead") => JobState::Dead,
        Some(_) => JobState::Scheduled,
        None => JobState::Unspecified,
    };
    global.with_client(async |client| {
        let payload = input::replacement(args.file.as_deref(), args.payload.as_deref()).await?;
        let start = values::start(args.run_at, args.delay, Start::RunAt, Start::Delay)?;
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
        args.selection.apply(&client, state, report, call).await
    })
}

pub(super) fn discard(args: &DiscardArgs, global: &Global) -> Result<(), Failure> {
    let report = Report::new(args.json, "discarded", "it is not dead");
    global.with_client(async |client| {
        let call = async |filter, page_token| {
            let answer = client.discard_jobs(DiscardJobsRequest { filter: Some(filter), page_token }).await?;
            Ok(Answer { done: answer.discarded_ids, next: answer.next_page_token, ..Answer::default() })
        };
        args.selection.apply(&client, JobState::Unspecified, report, call).await
    })
}

pub(super) fn release(args: &ReleaseArgs, global: &Global) -> Result<(), Failure> {
    let report = Report::new(args.json, "released", "it is not leased");
    global.with_client(async |client| {
        let call = async |filter, page_token| {
            let request = EndLeasesRequest { filter: Some(filter), error: args.fail.clone(), page_token };
            let answer = client.end_leases_by(request).await?;
            Ok(Answer { done: answer.ended_ids, next: answer.next_page_token, ..Answer::default() })
        };
        args.selection.apply(&client, JobState::Unspecified, report, call).await
    })
}

/// Answer to one call that changes selected jobs.
#[derive(Default)]
struct Answer {
    /// Ids of changed jobs.
    done: Vec<i64>,
    /// Ids of jobs that stay dead because another job holds their key.
    key_held: Vec<i64>,
    /// Page token of the next call.
    next: String,
}

impl Selection {
    /// Repeats `call` until all selected jobs are processed, and prints the ids of changed jobs. Fails if a job was not
    /// changed.
    async fn apply(
        &self,
        client: &Client,
        state: JobState,
        mut report: Report,
        call: impl AsyncFn(JobFilter, String) -> Result<Answer, Failure>,
    ) -> Result<(), Failure> {
        for filter in self.filters(state) {
            let mut token = String::new();
            loop {
                let answer = call(filter.clone(), token.clone()).await?;
                report.add(&filter, &answer)?;
                // The loop also ends if a broker repeats a page token, which would make the loop endless.
                if answer.next.is_empty() || answer.next == token {
                    break;
                }
                token = answer.next;
            }
        }
        let Report { changed, done, missed, .. } = report;
        if let Some(task_type) = self.task_type.as_deref() {
            if done + missed == 0 {
                task_type::must_exist(client, task_type).await?;
            }
            note(format_args!("{} of type {task_type:?} {changed}", text::jobs(done as i64)));
        }
        match (&self.error_group, self.conditions.worker()) {
            _ if missed > 0 => Err(Failure::failed(format!("{} not {changed}", text::jobs_were(missed)))),
            (Some(group), _) if done == 0 => Err(Failure::failed(format!(
                "no job that can be {changed} has an error of the group {group:?}; `howdah errors` lists the groups, with their places"
            ))),
            (_, Some(worker)) if done == 0 => Err(Failure::failed(format!(
                "no such job is known to be at the worker {worker:?}; `howdah workers` lists the workers"
            ))),
            _ => Ok(()),
        }
    }

    fn filters(&self, state: JobState) -> Vec<JobFilter> {
        match &self.task_type {
            Some(task_type) => vec![JobFilter {
                task_type: task_type.clone(),
                state: state as i32,
                error_group: self.error_group.clone().unwrap_or_default(),
                conditions: self.conditions.message(),
                ..JobFilter::default()
            }],
            None => self.ids.chunks(BATCH).map(|ids| JobFilter { ids: ids.to_vec(), ..JobFilter::default() }).collect(),
        }
    }
}

/// Prints which jobs were changed, and counts them.
struct Report {
    output: Output,
    json: bool,
    /// Past participle of the operation, as in "was not retried". Also the field name in JSON.
    changed: &'static str,
    /// Reason why the broker did not change a job.
    otherwise: &'static str,
    done: usize,
    missed: usize,
}

impl Report {
    fn new(json: bool, changed: &'static str, otherwise: &'static str) -> Self {
        Self { output: Output::new(), json, changed, otherwise, done: 0, missed: 0 }
    }

    /// Prints the answer to a call that selected jobs by `filter`.
    fn add(&mut self, filter: &JobFilter, answer: &Answer) -> Result<(), Failure> {
        let answered: HashSet<i64> = answer.done.iter().chain(&answer.key_held).copied().collect();
        let unchanged = filter.ids.iter().filter(|id| !answered.contains(id));
        let otherwise = self.otherwise;
        answer.done.iter().try_for_each(|id| self.print(*id, None))?;
        answer.key_held.iter().try_for_each(|id| self.print(*id, Some(KEY_HELD)))?;
        unchanged.copied().try_for_each(|id| self.print(id, Some(otherwise)))?;
        self.output.flush()
    }

    /// Prints a job, with the reason if it was not changed.
    fn print(&mut self, id: i64, problem: Option<&str>) -> Result<(), Failure> {
        let changed = self.changed;
        *(if problem.is_none() { &mut self.done } else { &mut self.missed }) += 1;
        match problem {
            _ if self.json => {
                let mut object = json!({"id": id, changed: problem.is_none()});
                if problem == Some(KEY_HELD) {
                    object["key_held"] = true.into();
                }
                self.output.json(&object)
            }
            None => self.output.line(id),
            Some(problem) => {
                note(format_args!("job {id} was not {changed}: {problem}"));
                Ok(())
            }
        }
    }
}
