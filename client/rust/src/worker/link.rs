//! Opens a stream and subscribes.

use std::time::Duration;

use howdah_proto::v1::{Subscribe, Welcome, WorkRequest, WorkResponse, work_request, work_response};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{Client, Error, Result};

/// How long the broker may take to send its welcome; it looks up earlier leases meanwhile.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(15);

/// Both directions of an open stream.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) requests: mpsc::Sender<WorkRequest>,
    pub(crate) messages: Streaming<WorkResponse>,
}

/// Opens a stream on a new connection and waits for the welcome.
pub(crate) async fn open(client: Client, broker: usize, subscribe: Subscribe) -> Result<(Link, Welcome)> {
    let channel = client.dial(broker).await?;
    let limit = usize::try_from(subscribe.max_message_bytes).unwrap_or(usize::MAX);
    let mut workers = client.workers_on(channel).max_decoding_message_size(limit);
    // A short queue: messages that are not on the wire yet gather in the session.
    let (requests, outgoing) = mpsc::channel(2);
    let first = WorkRequest { message: Some(work_request::Message::Subscribe(subscribe)) };
    let queued = requests.try_send(first);
    debug_assert!(queued.is_ok(), "the queue is new and has room");

    let greet = async {
        let outgoing = ReceiverStream::new(outgoing);
        let mut messages = workers.work(outgoing).await?.into_inner();
        match messages.message().await?.and_then(|first| first.message) {
            Some(work_response::Message::Welcome(welcome)) => Ok((Link { requests, messages }, welcome)),
            Some(_) => Err(Error::broken("the broker's first message was not a welcome")),
            None => Err(Error::broken("the broker closed the stream without a welcome")),
        }
    };
    match timeout(WELCOME_TIMEOUT, greet).await {
        Ok(greeted) => greeted.map_err(|error: Error| error.at(&client.endpoint_name(broker))),
        Err(_) => Err(Error::Deadline { what: "the broker's welcome", after: WELCOME_TIMEOUT }),
    }
}

impl Link {
    /// Half-closes the stream and waits briefly until the broker ends it, so that the last messages have arrived.
    pub(crate) async fn close(self, patience: Duration) {
        let Self { requests, mut messages } = self;
        drop(requests);
        let ended = async { while let Ok(Some(_)) = messages.message().await {} };
        // If the broker does not end it, it sees the connection close.
        let _ = timeout(patience, ended).await;
    }
}
