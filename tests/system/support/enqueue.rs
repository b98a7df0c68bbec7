//! Builders for enqueue requests, and their responses.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use howdah_proto::v1::{EnqueueJobsRequest, EnqueuedJob, NewJob};
use tonic::Status;

use super::{IntoNewJob, JobOptions, Refusal, Service, with_timeout};

/// A request to enqueue one job. Awaiting the value enqueues the job and returns its id.
pub struct Enqueue {
    all: EnqueueAll,
}

/// A request to enqueue several jobs. Awaiting the value enqueues the jobs and returns their ids.
pub struct EnqueueAll {
    service: Service,
    request: EnqueueJobsRequest,
}

impl Service {
    /// Builds a request to enqueue one job.
    pub fn enqueue(&self, job: impl IntoNewJob) -> Enqueue {
        Enqueue { all: self.enqueue_all([job]) }
    }

    /// Builds one request to enqueue these jobs.
    pub fn enqueue_all(&self, jobs: impl IntoIterator<Item = impl IntoNewJob>) -> EnqueueAll {
        let jobs = jobs.into_iter().map(IntoNewJob::into_new_job).collect();
        EnqueueAll { service: self.clone(), request: EnqueueJobsRequest { jobs, request_key: String::new() } }
    }
}

impl Enqueue {
    pub fn request_key(mut self, key: &str) -> Self {
        self.all.request.request_key = key.into();
        self
    }

    /// Enqueues the job and returns its result.
    pub async fn outcome(self) -> EnqueuedJob {
        self.all.outcomes().await[0]
    }

    /// Enqueues the job, which must be refused, and returns the error.
    pub async fn refused(self) -> Refusal {
        self.all.refused().await
    }

    /// Enqueues the job and returns its result or the error.
    pub async fn answer(self) -> Result<EnqueuedJob, Status> {
        Ok(self.all.answer().await?[0])
    }
}

impl JobOptions for Enqueue {
    fn with(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        change(&mut self.all.request.jobs[0]);
        self
    }
}

impl EnqueueAll {
    pub fn request_key(mut self, key: &str) -> Self {
        self.request.request_key = key.into();
        self
    }

    /// Enqueues the jobs and returns their results.
    pub async fn outcomes(self) -> Vec<EnqueuedJob> {
        self.answer().await.expect("enqueue")
    }

    /// Enqueues the jobs, which must be refused, and returns the error.
    pub async fn refused(self) -> Refusal {
        self.answer().await.expect_err("a refusal").into()
    }

    /// Enqueues the jobs and returns their results or the error.
    pub async fn answer(self) -> Result<Vec<EnqueuedJob>, Status> {
        let answer = with_timeout("an answer", self.service.jobs().enqueue_jobs(self.request)).await?;
        Ok(answer.into_inner().jobs)
    }
}

impl IntoFuture for Enqueue {
    type Output = i64;
    type IntoFuture = Pin<Box<dyn Future<Output = i64> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome().await.id })
    }
}

impl IntoFuture for EnqueueAll {
    type Output = Vec<i64>;
    type IntoFuture = Pin<Box<dyn Future<Output = Vec<i64>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcomes().await.iter().map(|job| job.id).collect() })
    }
}
