//! The end of a stream.

use std::{future::ready, time::Duration};

use futures::{Stream, TryStreamExt as _};
use tokio::time::timeout;
use tonic::Status;

use crate::Error;

/// Time in which the broker must end a stream that it or the client has closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until the broker ends a stream, and returns why: the broker's status, if it arrives in time. Drops further messages.
pub(crate) async fn close_reason<T>(messages: &mut (impl Stream<Item = Result<T, Status>> + Unpin)) -> Error {
    let end = messages.try_for_each(|_dropped| ready(Ok(())));
    match timeout(CLOSE_TIMEOUT, end).await {
        Ok(Err(status)) => status.into(),
        Ok(Ok(())) | Err(_) => Error::broken("the broker closed the stream"),
    }
}
