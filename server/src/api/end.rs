//! Why a stream ends before its time: the broker stops, or the caller's credential has ended.

use tokio_util::sync::CancellationToken;

use crate::{access::Caller, error::Error};

/// Either of the two.
pub(super) struct End {
    stopping: CancellationToken,
    caller: Caller,
}

impl End {
    pub(super) fn of(caller: &Caller, stopping: &CancellationToken) -> Self {
        Self { stopping: stopping.clone(), caller: caller.clone() }
    }

    /// Ready with the error that ends the stream. `what_to_do` when the broker stops.
    pub(super) async fn reached(&self, what_to_do: &str) -> Error {
        tokio::select! {
            () = self.stopping.cancelled() => Error::Unavailable(format!("the broker is stopping; {what_to_do}")),
            () = self.caller.ended() => self.caller.ended_error(),
        }
    }
}
