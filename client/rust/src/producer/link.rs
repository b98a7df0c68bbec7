//! One `StreamEnqueue` stream.

use howdah_proto::v1::{StreamEnqueueRequest, StreamEnqueueResponse};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{Client, Error, Result};

/// Both directions of a `StreamEnqueue` stream.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) requests: mpsc::Sender<StreamEnqueueRequest>,
    pub(super) answers: Streaming<StreamEnqueueResponse>,
}

/// Opens a stream on a new connection.
pub(super) async fn open(client: Client, broker: usize) -> Result<Link> {
    let channel = client.dial(broker).await?;
    // The capacity is 1. So one request waits for HTTP/2 flow control while the producer gathers jobs for the next request.
    let (requests, outgoing) = mpsc::channel(1);
    let mut jobs = client.jobs_on(channel);
    let connect_timeout = client.settings().connect_timeout;
    let answers = timeout(connect_timeout, jobs.stream_enqueue(ReceiverStream::new(outgoing)))
        .await
        .map_err(|_| Error::Deadline { operation: "opening an enqueue stream", after: connect_timeout })?
        .map_err(|status| Error::from(status).at(&client.endpoint_name(broker)))?;
    Ok(Link { requests, answers: answers.into_inner() })
}
