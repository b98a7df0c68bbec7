//! Early end of a stream: the broker is stopping, or the caller's credential is no longer valid.

use howdah_core::error::Error;
use howdah_engine::access::Caller;
use tokio_util::sync::CancellationToken;

/// The events that end a stream early.
pub(super) struct End {
    stopping: CancellationToken,
    caller: Caller,
}

impl End {
    pub(super) fn new(caller: &Caller, stopping: &CancellationToken) -> Self {
        Self { stopping: stopping.clone(), caller: caller.clone() }
    }

    /// Waits for an event that ends the stream, and returns its error. `what_to_do` is advice for the client in the error of a
    /// stopping broker.
    pub(super) async fn reached(&self, what_to_do: &str) -> Error {
        tokio::select! {
            () = self.stopping.cancelled() => Error::Unavailable(format!("the broker is stopping; {what_to_do}")),
            () = self.caller.ended() => self.caller.ended_error(),
        }
    }
}
