//! One job at a time, with many callers, like a web application that enqueues in its requests.

use std::sync::Arc;

use howdah_client::{
    Client, Producer,
    proto::{EnqueueJobsRequest, NewJob},
};
use tokio_util::sync::CancellationToken;

use super::{closed::Maker, plan::Plan, stamp, tally::Tally};
use crate::error::Result;

/// How a caller enqueues.
pub(super) enum Caller {
    /// By calls of its own.
    Alone(Client),
    /// Over a stream that all callers share.
    Sharing(Producer),
}

impl Caller {
    /// Returns when the job is stored.
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

/// Enqueues a job, waits for the answer, and repeats, until told to stop.
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
