//! One `StreamEnqueue` stream.

use howdah_proto::v1::{StreamEnqueueRequest, StreamEnqueueResponse};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{Client, Error, Result};

/// Both directions of a stream.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) requests: mpsc::Sender<StreamEnqueueRequest>,
    pub(super) answers: Streaming<StreamEnqueueResponse>,
}

/// Opens a stream on a new connection.
pub(super) async fn open(client: Client, broker: usize) -> Result<Link> {
    let channel = client.dial(broker).await?;
    // One request waits for the connection while the next one gathers.
    let (requests, outgoing) = mpsc::channel(1);
    let mut jobs = client.jobs_on(channel);
    let patience = client.settings().connect_timeout;
    let answers = timeout(patience, jobs.stream_enqueue(ReceiverStream::new(outgoing)))
        .await
        .map_err(|_| Error::Deadline { what: "opening an enqueue stream", after: patience })?
        .map_err(|status| Error::from(status).at(&client.endpoint_name(broker)))?;
    Ok(Link { requests, answers: answers.into_inner() })
}
