//! `howdah jobs`: lists the jobs of a task type, or of all types.

use howdah_client::proto::{Job, JobOrder, JobState as ProtoState, ListJobsRequest, ListJobsResponse};
use howdah_core::{job::JobState, logging::escaped};
use jiff::Timestamp;

use super::{
    conditions::Conditions,
    context::Global,
    failure::Failure,
    output::{Output, note},
    table::Table,
    task_type, text,
};

/// List the jobs of a task type, or of all types
///
/// Lists ready jobs in the order in which they will run, and finished jobs newest first. With --state leased, shows the start and
/// the broker of each job.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah jobs email.send
  howdah jobs email.send --state leased
  howdah jobs email.send --state dead --payload
  howdah jobs email.send --sort attempts --limit 20
  howdah jobs --sort failure --limit 20
  howdah jobs email.send --state scheduled --fair-key acme --older-than 2h
  howdah jobs email.send --state ready --all --json | jq -r .id")]
pub(super) struct Args {
    /// Task type of the jobs; without it, the jobs of all types are listed
    #[arg(value_name = "TYPE")]
    task_type: Option<String>,
    /// List only jobs in this state: ready, leased, scheduled, waiting, dead; or finished: succeeded,
    /// cancelled, expired, discarded
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Option<ProtoState>,
    /// With --state dead: list only jobs whose last error belongs to this group, as shown by `howdah errors`; an error text
    /// selects its group too, unless the worker reported a place
    #[arg(long = "error", value_name = "GROUP", requires = "state")]
    error_group: Option<String>,
    /// List in this order; attempts: unfinished and dead jobs that have started, most attempts first, at most 1,000; failure:
    /// dead jobs and jobs that wait for a retry, newest failure first
    #[arg(long, value_enum, value_name = "ORDER", conflicts_with = "Conditions")]
    sort: Option<Sort>,
    #[command(flatten)]
    conditions: Conditions,
    /// List at most this many jobs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// List all jobs
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Show payloads; with --json, also results
    #[arg(long)]
    payload: bool,
    /// Print one JSON object per job, as `howdah job`
    #[arg(long)]
    json: bool,
}

/// Order of the listed jobs, other than the default.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Sort {
    /// Most attempts first
    Attempts,
    /// Newest failure first
    Failure,
}

pub(super) fn state(name: &str) -> Result<ProtoState, String> {
    JobState::from_name(name).map(JobState::to_proto).ok_or_else(|| {
        let names = JobState::ALL.map(JobState::name).join(", ");
        format!("use one of {names}")
    })
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.with_client(async |client| {
        let mut output = Output::new();
        let mut left = if args.all { u64::MAX } else { args.limit };
        let mut request = ListJobsRequest {
            task_type: args.task_type.clone().unwrap_or_default(),
            state: args.state.unwrap_or_default() as i32,
            include_payload: args.payload,
            error_group: args.error_group.clone().unwrap_or_default(),
            order: match args.sort {
                None => JobOrder::Unspecified,
                Some(Sort::Attempts) => JobOrder::Attempts,
                Some(Sort::Failure) => JobOrder::Failure,
            } as i32,
            conditions: args.conditions.message(),
            ..ListJobsRequest::default()
        };
        let mut listed = 0_u64;
        while left > 0 {
            // A page with payloads must fit into one gRPC message, so it has fewer jobs.
            let most = if args.payload && !matches!(args.sort, Some(Sort::Attempts)) { 100 } else { 1_000 };
            request.page_size = left.min(most) as i32;
            let page = client.list_jobs(request.clone()).await?;
            output
                .jobs(args.json, &page.jobs, || args.table(&page.jobs, Timestamp::now()).with_heading(listed == 0))?;
            listed += page.jobs.len() as u64;
            left = left.saturating_sub(page.jobs.len() as u64);
            let last = page.next_page_token.is_empty() || page.next_page_token == request.page_token;
            note_look(args, &page);
            request.page_token = page.next_page_token;
            if last {
                break;
            }
            if left == 0 {
                note(format_args!("listed only {}: use --limit or --all to list more", text::first_jobs(listed)));
            }
        }
        if listed == 0 {
            task_type::must_exist(&client, args.task_type.as_deref()).await?;
        }
        if listed == 0 && !args.json {
            match &args.task_type {
                Some(task_type) => note(format_args!("no such jobs of type {task_type:?}")),
                None => note("no such jobs"),
            }
        }
        Ok(())
    })
}

/// Prints a note on stderr if a list ordered by attempts is incomplete.
fn note_look(args: &Args, page: &ListJobsResponse) {
    let listed = page.jobs.len() as u64;
    if page.has_more {
        // A page may be smaller than requested, because its jobs are large, or some have changed their state since the scan.
        let is_full = listed == args.limit.min(1_000);
        let more = if is_full { "--limit allows up to 1,000" } else { "there are more" };
        note(format_args!("listed only {}: {more}", text::first_jobs(listed)));
    }
    if page.partial {
        let scanned_count = text::grouped(page.scanned_count);
        note(format_args!(
            "scanned all dead jobs, but only {scanned_count} other jobs: jobs that were not scanned may have as many attempts"
        ));
    }
}

impl Args {
    fn table<'a>(&self, jobs: &'a [Job], now: Timestamp) -> Table<'a, Job> {
        let table = Table::new(jobs).right("ID", |job| job.id);
        let table = if self.task_type.is_none() { table.left("TYPE", |job| &job.task_type) } else { table };
        let is_leased = self.task_type.is_some() && self.state == Some(ProtoState::Leased);
        let table = if is_leased { table } else { table.left("STATE", |job| text::state(job.state)) };
        let table = table.right("PRIO", |job| job.priority).right("ATTEMPTS", attempts);
        let table = if is_leased {
            table
                .right("STARTED", |job| text::ago(job.start_time.as_ref(), now))
                .right("TIMES OUT", |job| job.deadline.as_ref().map_or("-".into(), |time| text::ago(Some(time), now)))
                .left("BROKER", |job| if job.broker.is_empty() { "- (pulled)" } else { job.broker.as_str() })
        } else {
            table
                .right("CREATED", |job| text::ago(job.create_time.as_ref(), now))
                .right("NEXT OR END", |job| text::ago(next_or_end(job), now))
        };
        with_remark(table, self.payload)
    }
}

/// Adds the last column of a table of jobs: payloads, or keys and last errors.
pub(super) fn with_remark(table: Table<'_, Job>, payload: bool) -> Table<'_, Job> {
    if payload {
        table.left("PAYLOAD", |job| text::payload_summary(&job.payload))
    } else {
        table.left("KEY, LAST ERROR", remark)
    }
}

/// Formats the number of started attempts and their maximum, such as `2/10`.
pub(super) fn attempts(job: &Job) -> String {
    format!("{}/{}", job.attempt, job.max_attempts)
}

/// Time at which the job ended, or at which its next attempt may start.
pub(super) fn next_or_end(job: &Job) -> Option<&prost_types::Timestamp> {
    job.finish_time.as_ref().or(job.run_time.as_ref())
}

/// Formats the key of the job and its last error.
pub(super) fn remark(job: &Job) -> String {
    let key = (!job.key.is_empty()).then(|| escaped(&job.key).into_owned());
    let error = job.failures.last().map(|failure| text::summary(&failure.error));
    key.into_iter().chain(error).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use howdah_client::proto::AttemptFailure;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(payload: bool, task_type: Option<&str>, state: Option<ProtoState>) -> Args {
        let task_type = task_type.map(str::to_owned);
        Args { task_type, state, payload, ..Line::parse_from(["jobs"]).args }
    }

    #[test]
    fn jobs_are_listed_in_columns() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let ready = Job {
            id: 9,
            state: ProtoState::Ready as i32,
            max_attempts: 10,
            create_time: at(90),
            payload: b"hello".as_slice().into(),
            ..Job::default()
        };
        let scheduled = Job {
            id: 10,
            state: ProtoState::Scheduled as i32,
            attempt: 2,
            max_attempts: 10,
            key: "k1".into(),
            run_time: at(160),
            create_time: at(0),
            failures: vec![AttemptFailure { error: "no\nluck".into(), ..AttemptFailure::default() }],
            ..Job::default()
        };
        let jobs = [ready, scheduled];
        let now = Timestamp::from_second(100).unwrap();
        let args = |payload, task_type: Option<&str>| args(payload, task_type, None);
        let lines = args(false, Some("t")).table(&jobs, now).to_string();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[0], "ID  STATE      PRIO  ATTEMPTS     CREATED  NEXT OR END  KEY, LAST ERROR");
        assert_eq!(lines[1], " 9  ready         0      0/10     10s ago");
        assert_eq!(lines[2], "10  scheduled     0      2/10  1m 40s ago        in 1m  k1: no luck");
        assert!(args(true, Some("t")).table(&jobs, now).to_string().contains("hello"));
        let jobs = jobs.map(|job| Job { task_type: "mail".into(), ..job });
        let all = args(false, None).table(&jobs, now).to_string();
        assert_eq!(
            all.lines().nth(2),
            Some("10  mail  scheduled     0      2/10  1m 40s ago        in 1m  k1: no luck")
        );
    }

    #[test]
    fn running_jobs_are_listed_with_their_start_and_their_broker() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let streamed =
            Job { id: 9, attempt: 1, max_attempts: 10, start_time: at(90), broker: "left".into(), ..Job::default() };
        let pulled = Job {
            id: 10,
            attempt: 2,
            max_attempts: 10,
            start_time: at(40),
            deadline: at(130),
            key: "k1".into(),
            ..Job::default()
        };
        let now = Timestamp::from_second(100).unwrap();
        let jobs = [streamed, pulled];
        let lines = args(false, Some("t"), Some(ProtoState::Leased)).table(&jobs, now).to_string();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[0], "ID  PRIO  ATTEMPTS  STARTED  TIMES OUT  BROKER      KEY, LAST ERROR");
        assert_eq!(lines[1], " 9     0      1/10  10s ago          -  left");
        assert_eq!(lines[2], "10     0      2/10   1m ago     in 30s  - (pulled)  k1");
    }

    #[test]
    fn an_unknown_state_is_answered_with_the_known_ones() {
        assert_eq!(state("dead"), Ok(ProtoState::Dead));
        assert!(state("done").unwrap_err().contains("succeeded, cancelled"));
    }
}
