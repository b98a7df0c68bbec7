//! Outgoing messages of a stream. A message is built when the transport can take it.

use std::time::Duration;

use futures::Stream;
use howdah_core::error::Error;
use tokio::sync::oneshot;

use super::{Closing, Gone, ServerMessage, Session, attach::Attachment};
use crate::dispatch::Dispatch;

/// Returns the outgoing messages of a stream. The transport polls for the next message when it can take one.
pub(super) fn outgoing(
    attachment: Attachment,
    failed: oneshot::Receiver<Error>,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
    futures::stream::unfold(Some((attachment, failed)), move |open| async move {
        let (attachment, mut failed) = open?;
        match next(&attachment, &mut failed).await {
            Next::Message(message) => Some((Ok(message), Some((attachment, failed)))),
            Next::Failed(error) => Some((Err(error), None)),
            Next::End => None,
        }
    })
}

enum Next {
    Message(ServerMessage),
    Failed(Error),
    End,
}

async fn next(attachment: &Attachment, failed: &mut oneshot::Receiver<Error>) -> Next {
    let session = &attachment.session;
    loop {
        let changed = session.changed.notified();
        match session.next_message(attachment.stream, &attachment.context.dispatch) {
            Outgoing::Message(message) => return Next::Message(message),
            Outgoing::Nothing => {}
            Outgoing::Over => return Next::End,
            Outgoing::Silent(liveness) => return Next::Failed(Error::WorkerSilent(liveness)),
            Outgoing::Resumed => return Next::Failed(Error::SessionResumed),
        }
        tokio::select! {
            () = changed => {}
            // A closed channel means that the reader ended without an error.
            error = &mut *failed, if !failed.is_terminated() => {
                if let Ok(error) = error {
                    return Next::Failed(error);
                }
            }
        }
    }
}

/// Next step of the sending side of a stream.
enum Outgoing {
    /// Send this message.
    Message(ServerMessage),
    /// There is nothing to send now.
    Nothing,
    /// The stream ends.
    Over,
    /// Ends the stream: the worker is on another stream.
    Resumed,
    /// Ends the stream: the worker was silent for this time.
    Silent(Duration),
}

impl Session {
    /// Returns the next step on this stream.
    fn next_message(&self, stream: u64, dispatch: &Dispatch) -> Outgoing {
        let mut state = self.state.lock();
        if state.streams > stream {
            return Outgoing::Resumed;
        }
        match state.gone {
            Some(Gone::Moved) => return Outgoing::Resumed,
            Some(Gone::Silent) => return Outgoing::Silent(state.liveness.unwrap_or_default()),
            None => {}
        }
        if state.stream != Some(stream) || (state.closing == Closing::ByBroker && state.outbox.is_empty()) {
            return Outgoing::Over;
        }
        let max_bytes = state.max_message_bytes;
        let next = state.outbox.next(max_bytes);
        if let Some((_, answers)) = &next {
            state.unanswered = state.unanswered.saturating_sub(*answers);
        }
        let over = next.is_none() && state.closing != Closing::Open && state.unanswered == 0;
        let wakes = state.stalled && state.outbox.is_low();
        if wakes {
            state.stalled = false;
        }
        drop(state);
        if wakes {
            dispatch.stall(self.key, false);
        }
        match next {
            Some((message, answers)) => {
                if answers > 0 {
                    self.answered.notify_one();
                }
                Outgoing::Message(message)
            }
            None if over => Outgoing::Over,
            None => Outgoing::Nothing,
        }
    }
}
