//! Methods of tests that pull and settle jobs by unary calls, without a work stream.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use howdah_proto::v1::{LeasedJob, Outcome, PullJobsRequest, SettleJobsRequest, SettleStatus};

use super::{Service, wire, with_timeout};

/// A pull call. Awaiting the value makes the call and returns the available jobs.
pub struct Pull {
    service: Service,
    request: PullJobsRequest,
}

impl Service {
    /// Builds a pull call for at most one job of a type.
    pub fn pull(&self, task_type: &str) -> Pull {
        let request = PullJobsRequest { task_types: vec![task_type.into()], ..PullJobsRequest::default() };
        Pull { service: self.clone(), request }
    }

    /// Settles jobs by a unary call, and returns one status per outcome.
    pub async fn settle(&self, outcomes: Vec<Outcome>) -> Vec<SettleStatus> {
        let answer = with_timeout("an answer", self.workers().settle_jobs(SettleJobsRequest { outcomes })).await;
        answer.expect("settle").into_inner().results.iter().map(|result| result.status()).collect()
    }
}

impl Pull {
    pub fn up_to(mut self, jobs: i32) -> Self {
        self.request.max_jobs = jobs;
        self
    }

    /// Makes the pull wait this long for the first job.
    pub fn wait(mut self, time: Duration) -> Self {
        self.request.wait = Some(wire(time));
        self
    }

    pub fn lease(mut self, time: Duration) -> Self {
        self.request.lease_duration = Some(wire(time));
        self
    }
}

impl IntoFuture for Pull {
    type Output = Vec<LeasedJob>;
    type IntoFuture = Pin<Box<dyn Future<Output = Vec<LeasedJob>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let pull = async move { self.service.workers().pull_jobs(self.request).await };
        Box::pin(async move { with_timeout("an answer", pull).await.expect("pull").into_inner().jobs })
    }
}
