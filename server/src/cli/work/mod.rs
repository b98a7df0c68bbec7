//! `howdah work`: run a shell command for each job.

mod drain;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_client::{Client, Job, Outcome, Worker, WorkerReport, proto::CancelReason};
use tokio::{select, sync::watch};

use super::{
    context::{Global, block_on},
    failure::Failure,
    signals::Signals,
};
use crate::workers::exec::{Attempt, Ending, Exec, Watchman};

/// A graceful stop waits for what runs, however long: the second signal is for the impatient.
const NO_LIMIT: Duration = Duration::from_hours(365 * 24);

/// Run a shell command for each job
///
/// The command gets the payload on standard input, and HOWDAH_JOB_ID, HOWDAH_TASK_TYPE,
/// HOWDAH_ATTEMPT, HOWDAH_MAX_ATTEMPTS and HOWDAH_HEADERS (JSON) in its environment. What it writes
/// to standard output is the job's result, at most 1 MiB (more fails the job for good). Exit status
/// 0 is success; 65 fails the job for good; anything else is tried again later, with the end of
/// standard error (4 KiB) as the error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah work greet --exec 'tr a-z A-Z'
  howdah work thumb.make --jobs 8 --exec './thumbnail --id \"$HOWDAH_JOB_ID\"'
  howdah work import.a import.b --exec ./import.sh --drain    # until the queue is empty

--drain ends when no job of these types is ready, and what this worker held is done. Jobs scheduled
for later are left, those waiting for their next attempt too.

When a job is cancelled, times out, or its lease is lost, its processes get SIGTERM, and SIGKILL 5 s
later; so they do when this worker is killed. Whatever a command leaves in the background ends with it.

SIGINT (Ctrl-C) or SIGTERM: no new jobs, those running are finished. A second one kills them and
gives the jobs back, their attempts not counted. A third one ends at once.")]
pub(super) struct Args {
    /// The types of the jobs to run
    #[arg(value_name = "TYPE", required = true)]
    task_types: Vec<String>,
    /// The command, run by sh -c
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// Commands at once, of each type
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// End after this many jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_jobs: Option<u64>,
    /// End when nothing is left to run
    #[arg(long)]
    drain: bool,
    /// Let the commands' standard error through
    #[arg(long, short)]
    verbose: bool,
}

pub(super) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    global.start_logging("info")?;
    block_on(async {
        let signals = Signals::<2>::catch()?;
        let client = global.connect().await?;
        let exec = Exec::new(&args.exec, args.verbose, signals.stages[1].clone()).watched_by(start_watchman()?);
        let result = Work::new(args, client, exec).run(args, &signals).await;
        match (result, signals.stages[1].is_cancelled()) {
            (Ok(()), true) => Err(Failure::interrupted(signals.exit_code(), None)),
            (result, _) => result,
        }
    })
}

fn start_watchman() -> Result<Arc<Watchman>, Failure> {
    Watchman::start().map_err(|error| Failure::failed(format!("cannot start a process of our own program: {error}")))
}

/// A worker to be started, perhaps several times.
struct Work {
    client: Client,
    exec: Arc<Exec>,
    task_types: Vec<String>,
    jobs: usize,
    /// Commands running now.
    running: watch::Sender<usize>,
}

impl Work {
    fn new(args: &Args, client: Client, exec: Exec) -> Self {
        Self {
            client,
            exec: Arc::new(exec),
            task_types: args.task_types.clone(),
            jobs: args.jobs as usize,
            running: watch::Sender::new(0),
        }
    }

    async fn run(&self, args: &Args, signals: &Signals<2>) -> Result<(), Failure> {
        let stop = &signals.stages[0];
        let mut total = Total::default();
        loop {
            let left = args.max_jobs.map(|max| max.saturating_sub(total.settled));
            let handle = self.worker(left).start();
            let drained = async { if args.drain { self.drained().await } else { std::future::pending().await } };
            let ended = select! {
                ended = handle.joined() => ended,
                () = stop.cancelled() => handle.stop().await,
                () = drained => handle.stop().await,
            };
            total.add(&ended?);
            // A job may have been given back while the worker stopped: then it begins again.
            let max_reached = args.max_jobs.is_some_and(|max| total.settled >= max);
            if !args.drain || stop.is_cancelled() || max_reached || self.ready().await == Some(0) {
                break;
            }
        }
        total.log();
        Ok(())
    }

    fn worker(&self, max_jobs: Option<u64>) -> Worker {
        let (exec, running) = (Arc::clone(&self.exec), self.running.clone());
        let handler = move |job: Job| {
            let (exec, running) = (Arc::clone(&exec), running.clone());
            async move {
                let _running = Running::begin(running);
                run_job(&exec, &job).await
            }
        };
        let worker = self.client.worker().handle(self.task_types.as_slice(), handler);
        let worker = worker.concurrency(self.jobs).max_jobs(max_jobs).stop_timeout(NO_LIMIT);
        worker.label("program", concat!("howdah work ", env!("CARGO_PKG_VERSION"))).build()
    }
}

async fn run_job(exec: &Exec, job: &Job) -> Outcome {
    let begun = Instant::now();
    let ending = exec.run(&Attempt::from(job), job.cancelled()).await;
    let took = begun.elapsed();
    // Of which job, the client's span says.
    match &ending {
        Ending::Done(_) => tracing::info!(?took, "done"),
        Ending::Failed(error) => tracing::warn!(?took, %error, "failed"),
        Ending::FailedForGood(error) => tracing::warn!(?took, %error, "failed for good"),
        Ending::Cancelled => tracing::warn!(?took, reason = reason(job), "cancelled"),
        Ending::GivenUp => tracing::warn!(?took, "killed and given back"),
    }
    ending.into_outcome()
}

fn reason(job: &Job) -> &'static str {
    match job.cancel_reason() {
        Some(CancelReason::Cancelled) => "somebody cancelled it",
        Some(CancelReason::Timeout) => "its timeout passed",
        Some(CancelReason::LeaseLost) => "its lease was lost",
        Some(CancelReason::Unspecified) | None => "this worker stops",
    }
}

/// Counts a command while it runs.
struct Running(watch::Sender<usize>);

impl Running {
    fn begin(running: watch::Sender<usize>) -> Self {
        running.send_modify(|count| *count += 1);
        Self(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// What was done, over all starts.
#[derive(Default)]
struct Total {
    done: u64,
    failed: u64,
    lost: u64,
    /// Of those, what counts for `--max-jobs`.
    settled: u64,
}

impl Total {
    fn add(&mut self, report: &WorkerReport) {
        self.done += report.acked;
        self.failed += report.failed;
        self.lost += report.lost + report.cancelled + report.unconfirmed;
        self.settled += report.received - report.released.min(report.received);
    }

    fn log(&self) {
        // What came and was not begun went back, which is nobody's concern; what was killed has a line of its own.
        let Self { done, failed, lost, .. } = self;
        tracing::info!(done, failed, lost, "stopped");
    }
}
