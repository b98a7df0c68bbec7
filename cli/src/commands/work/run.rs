//! Lifecycle of a worker of any kind.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_client::{CancellationToken, Client, Job, Outcome, Worker, WorkerReport, proto::CancelReason};
use tokio::{select, sync::watch, time::sleep};

use super::{super::failure::Failure, Args, drain, kind::Kind};
use crate::workers::attempt::{Attempt, ResultsFile, StopTokens};

/// Stop timeout of the client's worker: practically unlimited, because `--stop-after` limits graceful stops.
const NO_LIMIT: Duration = Duration::from_hours(365 * 24);

/// Worker that may be started several times.
pub(super) struct Work {
    client: Client,
    kind: Arc<Kind>,
    stop_tokens: StopTokens,
    task_types: Vec<String>,
    jobs: usize,
    liveness: Option<Duration>,
    /// Number of running jobs.
    running: watch::Sender<usize>,
}

impl Work {
    pub(super) fn new(args: &Args, client: Client, kind: Kind, stop_tokens: StopTokens) -> Self {
        Self {
            client,
            kind: Arc::new(kind),
            stop_tokens,
            task_types: args.task_types(),
            jobs: args.jobs as usize,
            liveness: args.liveness,
            running: watch::Sender::new(0),
        }
    }

    /// Runs until `stop` is cancelled, or until an end condition of the flags is met.
    pub(super) async fn run(&self, args: &Args, stop: &CancellationToken) -> Result<(), Failure> {
        if args.drain.is_some() {
            drain::check_counts(&self.client, &self.task_types).await?;
        }
        let mut total = Total::default();
        loop {
            let left = args.max_jobs.map(|max| max.saturating_sub(total.settled));
            let handle = self.worker(left).start();
            let drained = async {
                match args.drain {
                    Some(drain) => {
                        drain::drained(drain, &self.client, &self.task_types, self.running.subscribe()).await;
                    }
                    None => std::future::pending().await,
                }
            };
            let ended = select! {
                ended = handle.joined() => ended,
                () = stop.cancelled() => handle.stop().await,
                () = drained => handle.stop().await,
            };
            total.add(&ended?);
            // With --drain the worker starts again if jobs are left, for example jobs that it released while stopping.
            let max_reached = args.max_jobs.is_some_and(|max| total.settled >= max);
            let Some(drain) = args.drain else { break };
            if stop.is_cancelled() || max_reached || drain::is_empty(drain, &self.client, &self.task_types).await {
                break;
            }
        }
        self.kind.close().await;
        total.log();
        total.check()
    }

    fn worker(&self, max_jobs: Option<u64>) -> Worker {
        let (kind, client, stop_tokens) = (self.kind.clone(), self.client.clone(), self.stop_tokens.clone());
        let running = self.running.clone();
        let handler = move |job: Job| {
            let (kind, client, running) = (kind.clone(), client.clone(), Running::begin(running.clone()));
            let attempt = Attempt::new(job, stop_tokens.clone());
            async move {
                let _running = running;
                run_job(&kind, &client, attempt).await
            }
        };
        let worker = self.client.worker().handle_with(self.task_types.as_slice(), self.jobs, handler);
        let all = self.jobs.saturating_mul(self.task_types.len());
        let worker = worker.concurrency(all).max_jobs(max_jobs).stop_timeout(NO_LIMIT);
        let worker = match self.liveness {
            Some(liveness) => worker.liveness(liveness),
            None => worker,
        };
        worker.label("program", concat!("howdah work ", env!("CARGO_PKG_VERSION"))).build()
    }
}

async fn run_job(kind: &Kind, client: &Client, mut attempt: Attempt) -> Outcome {
    let begun = Instant::now();
    let (job, reports) = (attempt.job.clone(), attempt.reports.clone());
    let outcome = select! {
        outcome = run_attempt(kind, client, &mut attempt) => outcome,
        never = reports.run(&job) => match never {},
    };
    reports.flush(&job).await;
    let took = begun.elapsed();
    // The client's tracing span around this handler contains the job id. The client logs failures.
    match &outcome {
        Outcome::Ack(_) | Outcome::Advance { .. } => tracing::info!(?took, "attempt succeeded"),
        Outcome::Retry { .. } | Outcome::Fail { .. } => {}
        Outcome::Snooze(delay) => tracing::info!(?took, ?delay, "job snoozed"),
        Outcome::Release if job.is_cancelled() => tracing::warn!(?took, reason = reason(&job), "attempt cancelled"),
        Outcome::Release => tracing::warn!(?took, "job released"),
    }
    outcome
}

/// Runs an attempt, after the results of its dependencies were written to a file.
async fn run_attempt(kind: &Kind, client: &Client, attempt: &mut Attempt) -> Outcome {
    if kind.takes_results() {
        let written = select! {
            written = ResultsFile::write(attempt.job.results()) => written,
            () = attempt.job.cancelled() => return Outcome::release(),
        };
        match written {
            Ok(file) => attempt.results = file,
            Err(error) => return Outcome::retry(format!("cannot get the results of the job's dependencies: {error}")),
        }
    }
    kind.run(client, attempt).await
}

fn reason(job: &Job) -> &'static str {
    match job.cancel_reason() {
        Some(CancelReason::Cancelled) => "the job was cancelled",
        Some(CancelReason::Timeout) => "the timeout of the attempt passed",
        Some(CancelReason::LeaseLost) => "the lease was lost",
        Some(CancelReason::Unspecified) | None => "the worker stops",
    }
}

/// Counts one running job from its creation to its drop.
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

/// Numbers of jobs by outcome, summed over all starts of the worker.
#[derive(Default)]
struct Total {
    done: u64,
    failed: u64,
    lost: u64,
    unconfirmed: u64,
    /// Number of received jobs that were not released, compared with `--max-jobs`.
    settled: u64,
}

impl Total {
    fn add(&mut self, report: &WorkerReport) {
        self.done += report.acked;
        self.failed += report.failed;
        self.lost += report.lost + report.cancelled;
        self.unconfirmed += report.unconfirmed;
        self.settled += report.received - report.released.min(report.received);
    }

    fn log(&self) {
        // Omits released jobs: jobs that never started do not matter, and each job that was stopped has its own log message.
        let Self { done, failed, lost, unconfirmed, .. } = self;
        tracing::info!(done, failed, lost, unconfirmed, "worker stopped");
    }

    /// Fails if outcomes are unconfirmed, because these jobs may run again although they are done.
    fn check(&self) -> Result<(), Failure> {
        match self.unconfirmed {
            0 => Ok(()),
            count => Err(Failure::unavailable(format!(
                "the broker could not be reached: the outcomes of {count} jobs are not confirmed, and these jobs may run again"
            ))),
        }
    }
}

/// Cancels `stop` at the first signal or after `--max-age`. Cancels `graceful` after a further `--stop-after`, which ends the
/// jobs that still run.
pub(super) fn stop_in_time(
    signal: CancellationToken,
    stop: CancellationToken,
    graceful: CancellationToken,
    args: &Args,
) {
    let (max_age, stop_after) = (args.max_age, args.stop_after);
    tokio::spawn(async move {
        let aged = async {
            match max_age {
                Some(age) => sleep(age).await,
                None => std::future::pending().await,
            }
        };
        select! {
            () = signal.cancelled() => {}
            () = aged => tracing::info!("--max-age has passed, stopping"),
        }
        stop.cancel();
        if let Some(after) = stop_after {
            sleep(after).await;
            graceful.cancel();
        }
    });
}
