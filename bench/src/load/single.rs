//! One job per call, with many callers, like a web application that enqueues in its requests.

use std::sync::Arc;

use howdah_client::{Client, Producer, proto::EnqueueJobsRequest};
use tokio_util::sync::CancellationToken;

use super::{closed::Maker, plan::Plan, stamp, tally::Tally};
use crate::error::Result;

/// Calls, waits for the answer, and repeats, until told to stop.
pub(super) async fn produce(
    tally: Arc<Tally>,
    client: Client,
    plan: Plan,
    producer: usize,
    stop: CancellationToken,
) -> Result<()> {
    let mut maker = Maker::new(&plan, producer);
    let mut jobs = client.jobs();
    while !stop.is_cancelled() {
        let job = maker.job(stamp::payload(tally.now(), plan.payload));
        let request = EnqueueJobsRequest { jobs: vec![job], request_key: String::new() };
        let answer = jobs.enqueue_jobs(request).await?;
        tally.enqueued(&answer.get_ref().jobs);
    }
    Ok(())
}

/// The same, over a stream that the callers share.
pub(super) async fn share(
    tally: Arc<Tally>,
    shared: Producer,
    plan: Plan,
    producer: usize,
    stop: CancellationToken,
) -> Result<()> {
    let mut maker = Maker::new(&plan, producer);
    while !stop.is_cancelled() {
        let job = maker.job(stamp::payload(tally.now(), plan.payload));
        let stored = shared.enqueue(job.into()).await?;
        tally.enqueued_ids(std::iter::once(stored.id));
    }
    Ok(())
}
