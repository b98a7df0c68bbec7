//! Workers: one that uses the protocol directly, and the one of the Rust client.

use std::sync::Arc;

use howdah_client::{
    Client, Job, JobError,
    proto::{
        Ack, DrainRequest, LeasedJob, Outcome, Pong, Settle, WorkRequest, outcome,
        work_request::{self, Message},
        work_response::Message as Reply,
    },
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{
    plan::{MESSAGE_BYTES, Plan},
    tally::Tally,
};
use crate::error::{Error, Result};

/// Capacity of the queue of messages to the broker. The worker's window keeps the number of messages below this, so the queue
/// is never full.
const QUEUED: usize = 64;

/// Runs a worker that uses the protocol directly in one task, and settles the jobs of each message with one message. When
/// cancelled, drains: takes no more jobs, and ends when all its jobs are settled.
pub(super) async fn raw(
    tally: Arc<Tally>,
    client: Client,
    plan: Plan,
    worker: usize,
    connected: oneshot::Sender<()>,
    stop: CancellationToken,
) -> Result<()> {
    let (requests, outgoing) = mpsc::channel(QUEUED);
    let _ = requests.try_send(request(Message::Subscribe(plan.subscribe(worker))));
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

/// Runs the worker of the Rust client, with one handler call per job, as in a user's program. The client does not report
/// confirmed outcomes, so a job counts as settled when its handler ends. Fails if not all received jobs have been acked at the
/// end.
pub(super) async fn of_client(
    tally: Arc<Tally>,
    client: Client,
    plan: Plan,
    worker: usize,
    connected: oneshot::Sender<()>,
    stop: CancellationToken,
) -> Result<()> {
    let time = plan.handler;
    let handler = move |job: Job| {
        tally.entered_each([(job.id, job.payload.as_ref())].into_iter());
        let tally = tally.clone();
        async move {
            if !time.is_zero() {
                tokio::time::sleep(time).await;
            }
            tally.settled_ids([job.id].into_iter());
            Ok::<_, JobError>(())
        }
    };
    let handle = client.worker().handle(plan.task_type(worker), handler).concurrency(plan.window).build().start();
    handle.connected().await;
    let _ = connected.send(());
    let report = tokio::select! {
        ended = handle.joined() => ended?,
        () = stop.cancelled() => handle.stop().await?,
    };
    if report.acked != report.received {
        return Err(Error::Process(format!("a worker received {} jobs but acked {}", report.received, report.acked)));
    }
    Ok(())
}
