//! Handlers of task types.

use std::{any::type_name, fmt::Display, future::Future, panic::resume_unwind, sync::Arc};

use futures::future::BoxFuture;

use super::{
    job::Job,
    outcome::{IntoOutcome, Outcome},
};

/// A type-erased handler.
pub(crate) type Handler = Arc<dyn Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// One or several task types: `"a"`, `["a", "b"]`, a `Vec` or a slice of names.
pub trait TaskTypes {
    /// The names.
    fn names(self) -> Vec<String>;
}

impl TaskTypes for &str {
    fn names(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl TaskTypes for String {
    fn names(self) -> Vec<String> {
        vec![self]
    }
}

impl TaskTypes for &String {
    fn names(self) -> Vec<String> {
        vec![self.clone()]
    }
}

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

/// Wraps a handler that gets only the job.
pub(crate) fn plain<F, Fut>(handler: F) -> Handler
where
    F: Fn(Job) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    Arc::new(move |job| {
        let run = handler(job);
        Box::pin(async move { run.await.into_outcome() })
    })
}

/// Wraps a handler that also gets the payload, parsed by `read`.
pub(crate) fn typed<T, E, F, Fut>(handler: F, read: fn(&Job) -> Result<T, E>) -> Handler
where
    T: 'static,
    E: Display + 'static,
    F: Fn(T, Job) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    Arc::new(move |job| match read(&job) {
        Ok(value) => {
            let run = handler(value, job);
            Box::pin(async move { run.await.into_outcome() })
        }
        // The payload does not parse, so a retry would fail too.
        Err(error) => {
            let outcome = Outcome::fail(format!("the payload is not a {}: {error}", type_name::<T>()));
            Box::pin(async move { outcome })
        }
    })
}

/// Wraps a blocking handler, which runs on a thread of tokio's pool for blocking work.
pub(crate) fn blocking<F, R>(handler: F) -> Handler
where
    F: Fn(Job) -> R + Send + Sync + 'static,
    R: IntoOutcome + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |job| {
        let handler = handler.clone();
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || handler(job).into_outcome()).await {
                Ok(outcome) => outcome,
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                // The runtime is shutting down and has not run the handler.
                Err(_) => Outcome::release(),
            }
        })
    })
}
