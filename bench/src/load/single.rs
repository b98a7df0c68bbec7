//! Many callers that each enqueue one job at a time, like requests of a web application.

use std::sync::Arc;

use howdah_client::{
    Client, Producer,
    proto::{EnqueueJobsRequest, NewJob},
};
use tokio_util::sync::CancellationToken;

use super::{closed::Maker, plan::Plan, stamp, tally::Tally};
use crate::error::Result;

pub(super) enum Caller {
    /// Sends one unary call per job.
    Alone(Client),
    /// Sends jobs over a stream shared by all callers.
    Sharing(Producer),
}

impl Caller {
    /// Enqueues a job and returns when it is stored.
    async fn enqueue(&self, job: NewJob, tally: &Tally) -> Result<()> {
        match self {
            Self::Alone(client) => {
                let request = EnqueueJobsRequest { jobs: vec![job], request_key: String::new() };
                let answer = client.jobs().enqueue_jobs(request).await?;
                tally.enqueued(&answer.get_ref().jobs);
            }
            Self::Sharing(producer) => {
                let stored = producer.enqueue(job.into()).await?;
                tally.enqueued_ids(std::iter::once(stored.id));
            }
        }
        Ok(())
    }
}

/// Enqueues one job after the other until cancelled.
pub(super) async fn produce(
    tally: Arc<Tally>,
    caller: Caller,
    plan: Plan,
    producer: usize,
    stop: CancellationToken,
) -> Result<()> {
    let mut maker = Maker::new(&plan, producer);
    while !stop.is_cancelled() {
        let job = maker.job(stamp::payload(tally.now(), plan.payload));
        caller.enqueue(job, &tally).await?;
    }
    Ok(())
}
