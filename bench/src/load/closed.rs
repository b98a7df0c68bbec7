//! A closed loop: a pipeline of requests with a bounded number of unsettled jobs.

use std::{pin::pin, sync::Arc};

use howdah_client::{
    Client,
    proto::{NewJob, StreamEnqueueRequest},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{plan::Plan, stamp, tally::Tally};
use crate::error::{Error, Result};

/// Maximum number of requests that wait to be sent on a producer's stream.
const QUEUED: usize = 8;

/// Creates the jobs of one producer, cycling through several task types.
#[derive(Debug)]
pub(super) struct Maker {
    types: Arc<[String]>,
    next: usize,
    tenants: u32,
    payload: usize,
}

impl Maker {
    /// Creates a job maker for one producer. Each producer starts with a different task type.
    pub(super) fn new(plan: &Plan, producer: usize) -> Self {
        Self { types: plan.types.clone(), next: producer * 37, tenants: plan.tenants, payload: plan.payload }
    }

    /// Creates jobs that are due at the same time and share a payload.
    pub(super) fn jobs(&mut self, count: usize, due: u64) -> Vec<NewJob> {
        let payload = stamp::payload(due, self.payload);
        (0..count).map(|_| self.job(payload.clone())).collect()
    }

    /// Creates one job.
    pub(super) fn job(&mut self, payload: bytes::Bytes) -> NewJob {
        let task_type = self.types[self.next % self.types.len()].clone();
        self.next += 1;
        NewJob { task_type, payload, fair_key: self.tenant(), ..NewJob::default() }
    }

    /// Fair key of a pseudo-random tenant; all tenants occur equally often.
    fn tenant(&self) -> String {
        if self.tenants == 0 {
            return String::new();
        }
        let scattered = (self.next as u32).wrapping_mul(2_654_435_761) >> 8;
        format!("tenant-{}", scattered % self.tenants)
    }
}

/// Enqueues until cancelled or until `jobs` jobs are enqueued, then waits for the broker's answers.
pub(super) async fn produce(
    tally: Arc<Tally>,
    client: Client,
    plan: Plan,
    producer: usize,
    mut jobs: u64,
    due: Option<u64>,
    stop: CancellationToken,
) -> Result<()> {
    let (requests, outgoing) = mpsc::channel(QUEUED);
    let sending = async {
        let mut maker = Maker::new(&plan, producer);
        for sequence in 0.. {
            let batch = jobs.min(plan.batch as u64);
            jobs -= batch;
            let room = tokio::select! {
                room = tally.room.acquire_many(batch as u32) => room,
                () = stop.cancelled() => break,
            };
            let Ok(room) = room else { break };
            room.forget();
            let jobs = maker.jobs(batch as usize, due.unwrap_or_else(|| tally.now()));
            let request = StreamEnqueueRequest { sequence, jobs, request_key: String::new() };
            if batch == 0 || requests.send(request).await.is_err() {
                break;
            }
        }
        // Half-close the stream: the broker answers the requests in flight, and then ends the stream.
        drop(requests);
    };
    let answered = answers(&tally, client, ReceiverStream::new(outgoing));
    let (mut sending, mut answered) = (pin!(sending), pin!(answered));
    tokio::select! {
        answered = &mut answered => answered,
        () = &mut sending => answered.await,
    }
}

/// Opens the enqueue stream and reads the broker's answers until the stream ends.
async fn answers(tally: &Tally, client: Client, requests: ReceiverStream<StreamEnqueueRequest>) -> Result<()> {
    let mut answers = client.jobs().stream_enqueue(requests).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if let Some(error) = answer.error {
            return Err(Error::Process(format!("an enqueue was refused: {}", error.message)));
        }
        tally.enqueued(&answer.jobs);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn keys(tenants: u32) -> HashMap<String, u32> {
        let mut maker = Maker { types: Arc::new(["t".to_owned()]), next: 37, tenants, payload: 8 };
        let mut keys = HashMap::new();
        for job in maker.jobs(10_000, 0) {
            *keys.entry(job.fair_key).or_default() += 1;
        }
        keys
    }

    #[test]
    fn jobs_of_tenants_have_their_fair_keys_each_about_as_often() {
        assert_eq!(keys(0), HashMap::from([(String::new(), 10_000)]));
        let keys = keys(100);
        assert_eq!(keys.len(), 100);
        assert!(keys.values().all(|count| (80..120).contains(count)), "{keys:?}");
    }
}
