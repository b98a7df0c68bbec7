//! A worker that uses the protocol directly in one task, and settles the jobs of each message with one message.

use std::sync::Arc;

use howdah_client::{
    Client,
    proto::{
        Ack, DrainRequest, LeasedJob, Outcome, Pong, Settle, Subscribe, WorkRequest, outcome,
        work_request::{self, Message},
        work_response::Message as Reply,
    },
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::tally::Tally;
use crate::error::{Error, Result};

/// Maximum size of a message that the worker accepts.
pub(super) const MESSAGE_BYTES: usize = 16 << 20;
/// Capacity of the queue of messages to the broker. The worker's window keeps the number of messages below this, so the queue
/// is never full.
const QUEUED: usize = 64;

/// Runs the worker until cancelled. Then drains: takes no more jobs, and ends when all its jobs are settled.
pub(super) async fn work(
    tally: Arc<Tally>,
    client: Client,
    subscribe: Subscribe,
    connected: oneshot::Sender<()>,
    stop: CancellationToken,
) -> Result<()> {
    let (requests, outgoing) = mpsc::channel(QUEUED);
    let _ = requests.try_send(request(Message::Subscribe(subscribe)));
    let mut workers = client.workers().max_decoding_message_size(MESSAGE_BYTES);
    let mut messages = workers.work(ReceiverStream::new(outgoing)).await?.into_inner();
    let (mut connected, mut held, mut drain_sent, mut drained) = (Some(connected), 0_usize, false, false);
    while !drained || held > 0 {
        let message = tokio::select! {
            message = messages.message() => message?,
            () = stop.cancelled(), if !drain_sent => {
                drain_sent = true;
                let _ = requests.send(request(Message::Drain(DrainRequest {}))).await;
                continue;
            }
        };
        match message.and_then(|message| message.message) {
            Some(Reply::Jobs(jobs)) => {
                tally.entered(&jobs.jobs);
                held += jobs.jobs.len();
                let outcomes = jobs.jobs.iter().map(ack).collect();
                let _ = requests.send(request(Message::Settle(Settle { outcomes }))).await;
            }
            Some(Reply::Settled(settled)) => {
                held = held.saturating_sub(settled.results.len());
                tally.settled(&settled.results);
            }
            Some(Reply::Welcome(_)) => drop(connected.take().map(|connected| connected.send(()))),
            Some(Reply::Drain(_)) if drain_sent => drained = true,
            Some(Reply::Ping(_)) => drop(requests.send(request(Message::Pong(Pong {}))).await),
            Some(Reply::Cancel(_) | Reply::Pong(_) | Reply::Extended(_) | Reply::Progressed(_)) => {}
            Some(Reply::Drain(_)) | None => {
                return Err(Error::Process("a broker ended a worker's stream".into()));
            }
        }
    }
    Ok(())
}

fn request(message: work_request::Message) -> WorkRequest {
    WorkRequest { message: Some(message) }
}

fn ack(job: &LeasedJob) -> Outcome {
    Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Ack(Ack::default())) }
}
