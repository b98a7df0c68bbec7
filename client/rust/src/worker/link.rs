//! Opens a stream and subscribes. A dedicated thread serves the connection and answers the broker's Pings. So a handler that
//! blocks the program's runtime does not make the worker look dead.

use std::{io, thread, time::Duration};

use futures::Stream;
use howdah_proto::v1::{
    Pong, Subscribe, Welcome, WorkRequest, WorkResponse, work_request, work_response,
    worker_service_client::WorkerServiceClient,
};
use tokio::{runtime, sync::mpsc, time::timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};
use tonic::{Status, Streaming};

use crate::{Client, Error, Result, connection::close_reason};

/// Timeout of the `Welcome`. Before the broker sends it, it looks up the leases of an earlier stream in the database.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(15);

/// A thread with a tokio runtime for the connections of one worker. The thread ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct LinkThread {
    runtime: runtime::Handle,
    _stop: DropGuard,
}

impl LinkThread {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        thread::Builder::new().name("howdah-link".into()).spawn(move || runtime.block_on(stopped.cancelled()))?;
        Ok(Self { runtime: handle, _stop: stop.drop_guard() })
    }

    /// Opens a stream on a new connection and waits for the welcome.
    pub(crate) async fn open(&self, client: Client, broker: usize, subscribe: Subscribe) -> Result<(Link, Welcome)> {
        let opening = AbortOnDropHandle::new(self.runtime.spawn(open(client, broker, subscribe)));
        opening.await.unwrap_or_else(|_| Err(Error::broken("the thread of the worker's connection has ended")))
    }
}

/// Both directions of an open Work stream.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) requests: mpsc::Sender<WorkRequest>,
    /// Messages of the broker that the thread has received. The channel needs no limit: the windows bound the number of jobs,
    /// and the number of unanswered requests bounds the answers.
    pub(crate) messages: UnboundedReceiverStream<Result<WorkResponse, Status>>,
}

async fn open(client: Client, broker: usize, subscribe: Subscribe) -> Result<(Link, Welcome)> {
    let limit = usize::try_from(subscribe.max_message_bytes).unwrap_or(usize::MAX);
    let workers = WorkerServiceClient::new(client.dial(broker).await?);
    let workers = workers.max_encoding_message_size(client.settings().max_message_bytes);
    let mut workers = workers.max_decoding_message_size(limit);
    // The channel has room for only two messages, so that outcomes accumulate in the session and share a message while the
    // connection is slow.
    let (requests, outgoing) = mpsc::channel(2);
    let first = WorkRequest { message: Some(work_request::Message::Subscribe(subscribe)) };
    let (ponging, pongs) = mpsc::channel(1);
    let queued = requests.try_send(first);
    debug_assert!(queued.is_ok(), "a new queue has room for the Subscribe");

    let greet = async {
        let mut messages = workers.work(outgoing_with(pongs, outgoing)).await?.into_inner();
        match messages.message().await?.and_then(|first| first.message) {
            Some(work_response::Message::Welcome(welcome)) => {
                let (sender, received) = mpsc::unbounded_channel();
                tokio::spawn(receive(messages, sender, ponging));
                Ok((Link { requests, messages: received.into() }, welcome))
            }
            Some(_) => Err(Error::broken("the broker's first message was not a welcome")),
            None => Err(Error::broken("the broker closed the stream without a welcome")),
        }
    };
    match timeout(WELCOME_TIMEOUT, greet).await {
        Ok(greeted) => greeted.map_err(|error: Error| error.at(&client.endpoint_name(broker))),
        Err(_) => Err(Error::Deadline { operation: "the broker's welcome", after: WELCOME_TIMEOUT }),
    }
}

/// Returns the stream of outgoing messages. A due Pong is sent before other messages. The stream ends when the session drops
/// its sender.
fn outgoing_with(
    pongs: mpsc::Receiver<()>,
    requests: mpsc::Receiver<WorkRequest>,
) -> impl Stream<Item = WorkRequest> + Send {
    futures::stream::unfold((pongs, requests), |(mut pongs, mut requests)| async move {
        let request = tokio::select! {
            biased;
            Some(()) = pongs.recv() => WorkRequest { message: Some(work_request::Message::Pong(Pong {})) },
            request = requests.recv() => request?,
        };
        Some((request, (pongs, requests)))
    })
}

/// Answers Pings, and passes every message to the session, until the stream ends or the session drops its receiver.
async fn receive(
    mut messages: Streaming<WorkResponse>,
    session: mpsc::UnboundedSender<Result<WorkResponse, Status>>,
    pongs: mpsc::Sender<()>,
) {
    loop {
        let message = tokio::select! {
            message = messages.message() => message,
            () = session.closed() => return,
        };
        if let Ok(Some(WorkResponse { message: Some(work_response::Message::Ping(_)) })) = &message {
            // If the channel is full, a Pong is already due. It then answers this Ping too.
            let _ = pongs.try_send(());
        }
        let Some(message) = message.transpose() else { return };
        let ends = message.is_err();
        if session.send(message).is_err() || ends {
            return;
        }
    }
}

impl Link {
    /// Half-closes the stream and waits briefly until the broker ends it, so that the last messages arrive. Dropping the
    /// connection then ends the stream for the broker in any case.
    pub(crate) async fn close(self) {
        let Self { requests, mut messages } = self;
        drop(requests);
        close_reason(&mut messages).await;
    }
}
