//! Handlers of task types, and the tasks that run them.

use std::{
    any::{Any, type_name},
    fmt::Display,
    future::{Future, ready},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::task::AbortHandle;
use tracing::{Instrument as _, field, info_span};

use crate::telemetry::{Address, Telemetry};

use super::{
    job::Job,
    outcome::{IntoOutcome, Outcome},
    session::Mail,
};

/// A type-erased handler.
pub(crate) type Handler = Arc<dyn Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// One or several task types: `"a"`, `["a", "b"]`, a `Vec` or a slice of names.
pub trait TaskTypes {
    /// The names.
    fn names(self) -> Vec<String>;
}

macro_rules! single {
    ($($name:ty),+) => {
        $(impl TaskTypes for $name {
            fn names(self) -> Vec<String> {
                vec![self.into()]
            }
        })+
    };
}
single!(&str, String, &String);

impl<T: Into<String>> TaskTypes for Vec<T> {
    fn names(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: Into<String>, const N: usize> TaskTypes for [T; N] {
    fn names(self) -> Vec<String> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T: AsRef<str>> TaskTypes for &[T] {
    fn names(self) -> Vec<String> {
        self.iter().map(|name| name.as_ref().to_owned()).collect()
    }
}

/// Wraps a handler that also gets the payload, parsed by `read`.
pub(crate) fn typed<T, E, F, Fut>(
    handler: F,
    read: fn(&Job) -> Result<T, E>,
) -> impl Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync + 'static
where
    T: 'static,
    E: Display + 'static,
    F: Fn(T, Job) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    move |job| match read(&job) {
        Ok(value) => handler(value, job).map(IntoOutcome::into_outcome).boxed(),
        // The payload does not parse, so a retry would fail too.
        Err(error) => ready(Outcome::fail(format!("the payload is not a {}: {error}", type_name::<T>()))).boxed(),
    }
}

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
