//! Handlers of task types.

use std::{any::type_name, future::Future, panic::resume_unwind, sync::Arc};

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;

use super::{
    job::Job,
    outcome::{IntoOutcome, Outcome},
};

/// A handler of any kind.
pub(crate) type Handler = Arc<dyn Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// One task type or several: `"a"`, `["a", "b"]`, a `Vec` or a slice of names.
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

impl<T: AsRef<str>> TaskTypes for &Vec<T> {
    fn names(self) -> Vec<String> {
        self.as_slice().names()
    }
}

/// A handler that gets only the job.
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

/// A handler that also gets the payload read as JSON.
pub(crate) fn json<T, F, Fut>(handler: F) -> Handler
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Job) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    Arc::new(move |job| match serde_json::from_slice::<T>(&job.payload) {
        Ok(value) => {
            let run = handler(value, job);
            Box::pin(async move { run.await.into_outcome() })
        }
        // The payload would not parse the next time either.
        Err(error) => {
            Box::pin(async move { Outcome::fail(format!("the payload is not a {}: {error}", type_name::<T>())) })
        }
    })
}

/// A blocking handler, which runs on a thread for blocking work.
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
                // The runtime is going down.
                Err(_) => Outcome::release(),
            }
        })
    })
}
