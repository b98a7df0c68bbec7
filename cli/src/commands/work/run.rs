//! A worker of any kind, from its start to its end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_client::{CancellationToken, Client, Job, Outcome, Worker, WorkerReport, proto::CancelReason};
use tokio::{select, sync::watch, time::sleep};

use super::{super::failure::Failure, Args, kind::Kind};
use crate::workers::{
    attempt::{Attempt, Ending},
    reports::Reports,
};

/// A graceful stop waits for running jobs without a limit of its own.
const NO_LIMIT: Duration = Duration::from_hours(365 * 24);

/// A worker to start, perhaps several times.
pub(super) struct Work {
    pub(super) client: Client,
    kind: Arc<Kind>,
    pub(super) task_types: Vec<String>,
    jobs: usize,
    /// The number of jobs that run now.
    pub(super) running: watch::Sender<usize>,
}

impl Work {
    pub(super) fn new(args: &Args, client: Client, kind: Kind) -> Self {
        Self {
            client,
            kind: Arc::new(kind),
            task_types: args.task_types(),
            jobs: args.jobs as usize,
            running: watch::Sender::new(0),
        }
    }

    /// Runs until `stop`, or until nothing is left to do.
    pub(super) async fn run(&self, args: &Args, stop: &CancellationToken) -> Result<(), Failure> {
        if args.drain.is_some() {
            self.check_counts().await?;
        }
        let mut total = Total::default();
        loop {
            let left = args.max_jobs.map(|max| max.saturating_sub(total.settled));
            let handle = self.worker(left).start();
            let drained = async {
                match args.drain {
                    Some(drain) => self.drained(drain).await,
                    None => std::future::pending().await,
                }
            };
            let ended = select! {
                ended = handle.joined() => ended,
                () = stop.cancelled() => handle.stop().await,
                () = drained => handle.stop().await,
            };
            total.add(&ended?);
            // Jobs may have been released while the worker stopped: then it starts again.
            let max_reached = args.max_jobs.is_some_and(|max| total.settled >= max);
            let Some(drain) = args.drain else { break };
            if stop.is_cancelled() || max_reached || self.is_empty(drain).await {
                break;
            }
        }
        self.kind.close().await;
        total.log();
        total.check()
    }

    fn worker(&self, max_jobs: Option<u64>) -> Worker {
        let (kind, running) = (Arc::clone(&self.kind), self.running.clone());
        let handler = move |job: Job| {
            let (kind, running) = (Arc::clone(&kind), running.clone());
            async move {
                let _running = Running::begin(running);
                run_job(&kind, &job).await
            }
        };
        let worker = self.client.worker().handle(self.task_types.as_slice(), handler);
        let worker = worker.concurrency(self.jobs).max_jobs(max_jobs).stop_timeout(NO_LIMIT);
        worker.label("program", concat!("howdah work ", env!("CARGO_PKG_VERSION"))).build()
    }
}

async fn run_job(kind: &Kind, job: &Job) -> Outcome {
    let begun = Instant::now();
    let (attempt, reports) = (Attempt::from(job), Arc::new(Reports::default()));
    let ending = select! {
        ending = kind.run(&attempt, &reports, job.cancelled()) => ending,
        never = reports.pass_on(job) => match never {},
    };
    reports.flush(job).await;
    let took = begun.elapsed();
    // The client's span names the job.
    match &ending {
        Ending::Done(_) | Ending::Advanced(..) => tracing::info!(?took, "done"),
        Ending::Failed(error) | Ending::FailedUntil(error, _) => tracing::warn!(?took, %error, "failed"),
        Ending::FailedForGood(error) => tracing::warn!(?took, %error, "failed for good"),
        Ending::Snoozed(delay) => tracing::info!(?took, ?delay, "snoozed"),
        Ending::Cancelled => tracing::warn!(?took, reason = reason(job), "cancelled"),
        Ending::Released => tracing::warn!(?took, "released"),
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

/// Counts a job while it runs.
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

/// Totals over all starts.
#[derive(Default)]
struct Total {
    done: u64,
    failed: u64,
    lost: u64,
    unconfirmed: u64,
    /// Those that count for `--max-jobs`.
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
        // Jobs that were released before they started need no line; killed ones have a line of their own.
        let Self { done, failed, lost, unconfirmed, .. } = self;
        tracing::info!(done, failed, lost, unconfirmed, "stopped");
    }

    /// Unconfirmed outcomes may run again although they were done: the caller should know.
    fn check(&self) -> Result<(), Failure> {
        match self.unconfirmed {
            0 => Ok(()),
            count => Err(Failure::unavailable(format!(
                "the broker could not be reached: the outcomes of {count} jobs are not confirmed, and these jobs may run again"
            ))),
        }
    }
}

/// Cancels `stop` at the first signal or after `max_age`, and `politely` this much later.
pub(super) fn stop_in_time(
    signal: CancellationToken,
    stop: CancellationToken,
    politely: CancellationToken,
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
            politely.cancel();
        }
    });
}
