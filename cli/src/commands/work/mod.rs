//! `howdah work`: runs the built-in workers.

mod drain;
mod kind; // kinds of workers, and their flags
mod run; // lifecycle of a worker

use std::time::Duration;

use clap::ArgGroup;
use howdah_client::CancellationToken;

use self::{
    drain::Drain,
    kind::{Kind, PostArgs, ProcessArgs, SqlArgs},
    run::{Work, stop_in_time},
};
use super::{
    context::{Global, block_on},
    failure::Failure,
    signals::Signals,
    values,
};
use crate::workers::attempt::StopTokens;

pub(super) use self::kind::is_database_name;

/// Run a command for each job, feed jobs to a process, send them to a URL, or run them as SQL
///
/// A command receives the payload on stdin, and HOWDAH_JOB_ID, HOWDAH_TASK_TYPE, HOWDAH_ATTEMPT, HOWDAH_MAX_ATTEMPTS,
/// HOWDAH_HEADERS and HOWDAH_TAGS (JSON), and HOWDAH_CHECKPOINT (base64) in its environment. For a job with dependencies,
/// HOWDAH_RESULTS is the path of a file with their results, one JSON object per line. Its stdout is the job's result, at most 1
/// MiB; with more, the job fails for good. Exit status 0 means success, and 65 means that the job fails for good. After any
/// other status the job is retried, and its error is the end of stderr (4 KiB). Lines on file descriptor 3 report progress:
/// "50% half of it".
///
/// With --lines, one process serves many jobs, each as a line of JSON: see docs/reference/workers.md.
///
/// With --post, each job is an HTTP request with the payload as its body. 2xx means success, and the body of the answer is the
/// result. After 4xx, except 408, 425 and 429, the job fails for good. After any other answer it is retried.
///
/// With --sql, each job is one or more SQL statements in one transaction. The returned rows are its result.
#[derive(Debug, clap::Args)]
#[command(
    group(ArgGroup::new("program").args(["exec", "argv"])),
    group(ArgGroup::new("bounded").args(["exec", "argv", "sql"])),
    group(ArgGroup::new("worker").required(true).args(["exec", "argv", "post", "sql"])),
    after_help = "\
Examples:
  howdah work greet --exec 'tr a-z A-Z'
  howdah work thumb.make --jobs 8 --exec './thumbnail --id \"$HOWDAH_JOB_ID\"'
  howdah work import.a import.b --exec ./import.sh --drain    # until the queue is empty
  howdah work thumb.make --jobs 8 --argv ./thumbnail --size 200
  howdah work hook --jobs 50 --post https://example.com/hook --secret-file hook.key
  howdah work --jobs 4 --sql env:APP_DSN --name reports=env:REPORTS_DSN
  howdah work greet --jobs 100 --lines --exec \"jq -c --unbuffered '{id, result: .payload | ascii_upcase}'\"

--drain exits when no job of these types is ready and no worker holds one, because a job of a killed
worker comes back a moment later. The log reports jobs of other workers that it waits for. It does not
wait for scheduled jobs, including jobs that wait for their next attempt, nor for jobs that wait for a
limit, a key or another job for longer than a second. --drain=10m waits for these if they are due within
10 minutes. --drain=now exits when no job is ready and this worker holds none.

When a job is cancelled, times out, or loses its lease, its processes get SIGTERM, and SIGKILL 5 s
later. The same happens when this worker is killed. Background processes of a command end with it.
An SQL statement is cancelled in the server.

SIGINT (Ctrl-C) or SIGTERM: the worker takes no new jobs, and running jobs finish first. After
--stop-after their processes are ended (SIGTERM, SIGKILL 5 s later) and the jobs are released; their
attempts do not count. A second signal kills and releases them immediately. A third signal ends the
worker immediately.")]
pub(super) struct Args {
    /// Task types of the jobs to run [default with --sql: sql]
    #[arg(value_name = "TYPE", required_unless_present = "sql")]
    task_types: Vec<String>,
    /// Run at most this many jobs of each type at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// Exit after this many jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_jobs: Option<u64>,
    /// Exit after this time; running jobs finish first
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    max_age: Option<Duration>,
    /// When exiting, wait at most this long for running jobs [default: until they finish]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    stop_after: Option<Duration>,
    /// Exit when no job is left to run; =now does not wait for jobs of other workers, =10m also waits for jobs that are due
    /// within 10 minutes
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    drain: Option<Drain>,
    /// With --post: limit a request and its answer to this time [default: 30s]. With --sql: cancel the statements of a job after
    /// this time [default: only the timeout of the job applies]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["exec", "argv"],
          value_parser = values::duration)]
    timeout: Option<Duration>,
    /// Let the broker count this worker as lost after this silence, 10s to 1h [default: the broker's, 60s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    liveness: Option<Duration>,
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    post: PostArgs,
    #[command(flatten)]
    sql: SqlArgs,
}

impl Args {
    /// Task types of the jobs to run.
    fn task_types(&self) -> Vec<String> {
        if self.task_types.is_empty() { vec![kind::SQL_TASK_TYPE.to_owned()] } else { self.task_types.clone() }
    }

    /// Creates the worker that the flags describe. `kill` kills its processes.
    fn kind(&self, kill: &CancellationToken) -> Result<Kind, Failure> {
        if let Some(kind) = self.process.kind(kill)? {
            return Ok(kind);
        }
        if let Some(kind) = self.post.kind(self.jobs as usize, self.timeout)? {
            return Ok(kind);
        }
        let kind = self.sql.kind(self.process.max_output as usize, self.timeout)?;
        kind.ok_or_else(|| Failure::usage("no worker given: use --exec, --argv, --post or --sql"))
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.start_logging("info")?;
    block_on(async {
        let signals = Signals::<2>::catch()?;
        let stop_tokens = StopTokens::new(signals.stages[1].clone());
        let kind = args.kind(&stop_tokens.immediate)?;
        let client = global.connect().await?;
        let stop = CancellationToken::new();
        stop_in_time(signals.stages[0].clone(), stop.clone(), stop_tokens.graceful.clone(), args);
        let result = Work::new(args, client, kind, stop_tokens).run(args, &stop).await;
        match (result, signals.stages[1].is_cancelled()) {
            (Ok(()), true) => Err(Failure::interrupted(signals.exit_code(), None)),
            (result, _) => result,
        }
    })
}
