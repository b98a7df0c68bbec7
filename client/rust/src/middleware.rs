//! Middleware: code that wraps each enqueue and each handler.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use crate::{Enqueued, Job, NewJob, Outcome, Result, worker::Handler};

/// Wraps each enqueue of a client, and each handler of its workers, with logs, metrics or checks.
/// [`ClientBuilder::middleware`](crate::ClientBuilder::middleware) adds one. The first one added is the outermost.
///
/// ```
/// use futures::future::BoxFuture;
/// use howdah_client::{Job, Middleware, NewJob, Next, Outcome, Result};
///
/// struct Tenant(String);
///
/// impl Middleware for Tenant {
///     fn enqueue(&self, jobs: &mut [NewJob]) -> Result<()> {
///         jobs.iter_mut().for_each(|job| *job = job.clone().header("tenant", &self.0));
///         Ok(())
///     }
///
///     fn handle(&self, job: Job, next: Next) -> BoxFuture<'static, Outcome> {
///         Box::pin(async move {
///             if !job.headers.contains_key("tenant") {
///                 return Outcome::fail("whose job is it?");
///             }
///             next.run(job).await
///         })
///     }
/// }
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Called before jobs are sent, by a call or by a [`Producer`](crate::Producer). It may change the jobs. If it returns an
    /// error, nothing is sent.
    fn enqueue(&self, jobs: &mut [NewJob]) -> Result<()> {
        let _ = jobs;
        Ok(())
    }

    /// Called with the result of an enqueue call. Not called for the jobs of a [`Producer`](crate::Producer): their results
    /// arrive later, by receipts.
    fn enqueued(&self, answer: &Result<Vec<Enqueued>>) {
        let _ = answer;
    }

    /// Wraps a handler: `next.run(job)` runs it.
    fn handle(&self, job: Job, next: Next) -> BoxFuture<'static, Outcome> {
        next.run(job)
    }
}

/// The inner part of a handler call: the remaining middleware and the handler itself.
pub struct Next(Handler);

impl Next {
    /// Runs the remaining middleware and the handler.
    pub fn run(self, job: Job) -> BoxFuture<'static, Outcome> {
        (self.0)(job)
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

/// All middleware of a client.
#[derive(Clone, Default)]
pub(crate) struct Layers(Vec<Arc<dyn Middleware>>);

impl Layers {
    pub(crate) fn add(&mut self, one: impl Middleware) {
        self.0.push(Arc::new(one));
    }

    pub(crate) fn enqueue(&self, jobs: &mut [NewJob]) -> Result<()> {
        self.0.iter().try_for_each(|one| one.enqueue(jobs))
    }

    pub(crate) fn enqueued(&self, answer: &Result<Vec<Enqueued>>) {
        self.0.iter().rev().for_each(|one| one.enqueued(answer));
    }

    /// Wraps a handler with all middleware.
    pub(crate) fn around(&self, handler: Handler) -> Handler {
        self.0.iter().rev().fold(handler, |inner, one| {
            let one = one.clone();
            Arc::new(move |job| one.handle(job, Next(inner.clone())))
        })
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layers({})", self.0.len())
    }
}
