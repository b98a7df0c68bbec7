//! Runs the handler of one job as a task.

use std::{any::Any, panic::AssertUnwindSafe};

use futures::FutureExt as _;
use tokio::task::AbortHandle;
use tracing::{Instrument as _, field, info_span};

use crate::telemetry::{Address, Telemetry};

use super::{handler::Handler, job::Job, outcome::Outcome, session::Mail};

/// Runs the handler in a new task, which sends the outcome to the worker.
///
/// With `abort_cancelled`, a cancelled handler is dropped at its next await point.
pub(crate) fn spawn(
    handler: Handler,
    job: Job,
    abort_cancelled: bool,
    telemetry: Telemetry,
    broker: Address,
) -> AbortHandle {
    let lease = job.lease.clone();
    let (id, task_type, attempt_number) = (job.id, job.task_type.clone(), job.attempt);
    let span = info_span!(
        "howdah.job",
        id = job.id,
        r#type = %job.task_type,
        attempt = job.attempt,
        traceparent = field::Empty,
    );
    if !job.traceparent.is_empty() {
        span.record("traceparent", job.traceparent.as_str());
    }
    let run = async move {
        let mut attempt = telemetry.attempt(&job, &broker);
        // The async block makes `catch_unwind` also catch a handler that panics before it returns its future.
        let handled = AssertUnwindSafe(attempt.within(async move { handler(job).await })).catch_unwind();
        let ended = if abort_cancelled {
            tokio::select! {
                biased;
                ended = handled => ended,
                () = lease.cancel.cancelled() => Ok(Outcome::release()),
            }
        } else {
            handled.await
        };
        let outcome = ended.unwrap_or_else(|panic| {
            let text = panic_text(panic.as_ref());
            Outcome::retry(format!("the handler panicked: {text}"))
        });
        if let Outcome::Retry { error, .. } | Outcome::Fail { error, .. } = &outcome {
            tracing::warn!(job = id, r#type = task_type, attempt = attempt_number, error, "the handler failed");
        }
        attempt.handled(&outcome);
        lease.send(Mail::Done(lease.key, outcome, attempt));
    };
    tokio::spawn(run.instrument(span)).abort_handle()
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
