//! `howdah work`: the workers in the box.

mod drain;
mod kind; // what is done with a job
mod post; // an HTTP request for each job
mod process; // processes: one for each job, or one for many
mod run; // from the start to the end
mod sql; // statements in a database

use std::time::Duration;

use clap::ArgGroup;
use howdah_client::CancellationToken;

use self::{
    kind::Kind,
    post::PostArgs,
    process::ProcessArgs,
    run::{Work, stop_in_time},
    sql::SqlArgs,
};
use super::{
    context::{Global, block_on},
    failure::Failure,
    signals::Signals,
};
use crate::workers::exec::Ends;

pub(super) use self::sql::is_name as is_database_name;

/// Run a command for each job, feed jobs to a process, send them to a URL, or run them as SQL
///
/// A command gets the payload on standard input, and HOWDAH_JOB_ID, HOWDAH_TASK_TYPE, HOWDAH_ATTEMPT,
/// HOWDAH_MAX_ATTEMPTS, HOWDAH_HEADERS (JSON) and HOWDAH_CHECKPOINT (base64) in its environment. What it
/// writes to standard output is the job's result, at most 1 MiB (more fails the job for good). Exit status
/// 0 is success; 65 fails the job for good; anything else is tried again later, with the end of standard
/// error (4 KiB) as the error. Lines on file descriptor 3 are its progress: "50% half of it".
///
/// With --lines, one process serves many jobs, each a line of JSON: see docs/reference/workers.md.
///
/// With --post, each job is an HTTP request with the payload as its body. 2xx is success, the body the
/// result; 4xx but 408, 425 and 429 fails the job for good; anything else is tried again later.
///
/// With --sql, each job is SQL, one or more statements in one transaction, and what they return is its result.
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

--drain ends when no job of these types is ready, and what this worker held is done. Jobs scheduled
for later are left, those waiting for their next attempt too, and those that wait for a limit, a key
or another job for longer than a second.

When a job is cancelled, times out, or its lease is lost, its processes get SIGTERM, and SIGKILL 5 s
later; so they do when this worker is killed. Whatever a command leaves in the background ends with it.
A statement is cancelled in the server.

SIGINT (Ctrl-C) or SIGTERM: no new jobs, those running are finished, or ended after --stop-after (SIGTERM,
SIGKILL 5 s later) and given back, their attempts not counted. A second one kills them and gives them back
at once. A third one ends at once.")]
pub(super) struct Args {
    /// The types of the jobs to run; with --sql, sql unless told otherwise
    #[arg(value_name = "TYPE", required_unless_present = "sql")]
    task_types: Vec<String>,
    /// Jobs at once, of each type
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// End after this many jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_jobs: Option<u64>,
    /// End after so long; what runs then is finished
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    max_age: Option<Duration>,
    /// When ending, wait so long for what runs; the default is as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    stop_after: Option<Duration>,
    /// End when nothing is left to run
    #[arg(long)]
    drain: bool,
    /// With --post: for a whole request, its answer included; the default is 30s. With --sql: for all statements of a
    /// job, which are cancelled then; the default is none but the job's own timeout
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["exec", "argv"],
          value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    post: PostArgs,
    #[command(flatten)]
    sql: SqlArgs,
}

impl Args {
    /// The types of the jobs to run.
    fn task_types(&self) -> Vec<String> {
        if self.task_types.is_empty() { vec![sql::TASK_TYPE.to_owned()] } else { self.task_types.clone() }
    }

    /// The worker that the flags ask for.
    fn kind(&self, ends: &Ends) -> Result<Kind, Failure> {
        if let Some(kind) = self.process.kind(ends)? {
            return Ok(kind);
        }
        if let Some(kind) = self.post.kind(ends, self.jobs as usize, self.timeout)? {
            return Ok(kind);
        }
        let kind = self.sql.kind(ends, self.process.max_output as usize, self.timeout)?;
        kind.ok_or_else(|| Failure::usage("one of --exec, --argv, --post and --sql says what to do with a job"))
    }
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.start_logging("info")?;
    block_on(async {
        let signals = Signals::<2>::catch()?;
        let ends = Ends { politely: CancellationToken::new(), at_once: signals.stages[1].clone() };
        let kind = args.kind(&ends)?;
        let client = global.connect().await?;
        let stop = CancellationToken::new();
        stop_in_time(signals.stages[0].clone(), stop.clone(), ends.politely, args);
        let result = Work::new(args, client, kind).run(args, &stop).await;
        match (result, signals.stages[1].is_cancelled()) {
            (Ok(()), true) => Err(Failure::interrupted(signals.exit_code(), None)),
            (result, _) => result,
        }
    })
}
