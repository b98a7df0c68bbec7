//! The messages of a stream. A message is made when the transport can take it.

use std::{sync::LazyLock, time::Duration};

use futures::Stream;
use tokio::{sync::oneshot, time::Instant};

use super::{ServerMessage, Session, attach::Attachment};
use crate::{dispatch::Dispatch, error::Error};

/// The outgoing messages: polled when the transport can take one.
pub(super) fn outgoing(
    attachment: Attachment,
    failed: oneshot::Receiver<Error>,
) -> impl Stream<Item = Result<ServerMessage, Error>> + Send {
    let ping = attachment.context.config.ping_interval;
    futures::stream::unfold(Some((attachment, failed)), move |open| async move {
        let (attachment, mut failed) = open?;
        match next(&attachment, &mut failed, ping).await {
            Next::Message(message) => Some((Ok(message), Some((attachment, failed)))),
            Next::Failed(error) => Some((Err(error), None)),
            Next::End => None,
        }
    })
}

/// When a stream on which nothing happens gets its `Ping`.
pub(crate) fn ping_at(ping: Duration) -> Instant {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGINNING + together(BEGINNING.elapsed(), ping)
}

/// After this time, or up to a twentieth of it earlier: so that the streams of a connection are pinged at the same moments, and
/// many pings cost one write and one wake-up.
fn together(now: Duration, ping: Duration) -> Duration {
    let tick = (ping / 20).max(Duration::from_millis(1)).as_nanos();
    let at = now + ping;
    at.saturating_sub(Duration::from_nanos((at.as_nanos() % tick) as u64))
}

enum Next {
    Message(ServerMessage),
    Failed(Error),
    End,
}

async fn next(attachment: &Attachment, failed: &mut oneshot::Receiver<Error>, ping: Duration) -> Next {
    let session = &attachment.session;
    let quiet = tokio::time::sleep_until(ping_at(ping));
    tokio::pin!(quiet);
    loop {
        let changed = session.changed.notified();
        match session.next_message(attachment.stream, &attachment.context.dispatch) {
            Outgoing::Message(message) => return Next::Message(message),
            Outgoing::Nothing => {}
            Outgoing::Over => return Next::End,
            Outgoing::Resumed => return Next::Failed(Error::SessionResumed),
        }
        tokio::select! {
            () = changed => {}
            () = &mut quiet => return Next::Message(ServerMessage::Ping),
            // A closed channel means that the reader ended without an error.
            error = &mut *failed, if !failed.is_terminated() => {
                if let Ok(error) = error {
                    return Next::Failed(error);
                }
            }
        }
    }
}

/// The next step of a stream.
enum Outgoing {
    /// Send this message.
    Message(ServerMessage),
    /// There is nothing to send now.
    Nothing,
    /// The stream ends.
    Over,
    /// Nothing any more: its worker is on another stream.
    Resumed,
}

impl Session {
    /// The next message on this stream.
    fn next_message(&self, stream: u64, dispatch: &Dispatch) -> Outgoing {
        let mut state = self.state.lock();
        if state.streams > stream || state.moved {
            return Outgoing::Resumed;
        }
        if state.stream != Some(stream) || (state.closing_now && state.outbox.is_empty()) {
            return Outgoing::Over;
        }
        let max_bytes = state.max_message_bytes;
        let next = state.outbox.next(max_bytes);
        if let Some((_, answers)) = &next {
            state.unanswered = state.unanswered.saturating_sub(*answers);
        }
        let over = next.is_none() && state.closing && state.unanswered == 0;
        let wakes = std::mem::take(&mut state.stalled);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn streams_that_fall_idle_at_nearly_the_same_time_are_pinged_together_and_none_of_them_late() {
        let ping = Duration::from_secs(20);
        let mut moments = BTreeSet::new();
        for fell_idle in (0..10_000).step_by(10).map(Duration::from_millis) {
            let at = together(fell_idle, ping);
            assert!(at <= fell_idle + ping && at + ping / 20 > fell_idle + ping, "{fell_idle:?}: {at:?}");
            moments.insert(at);
        }
        assert_eq!(moments.len(), 10);
    }
}
