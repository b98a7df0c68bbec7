//! How a session gets on a stream, and off it.

use std::{collections::HashSet, sync::Arc};

use super::{Held, ServerMessage, Session};
use crate::{
    broker::SharedBroker,
    dispatch::Dispatch,
    job::Lease,
    store::{Action, Adopted},
};

/// The error of an attempt whose worker is gone.
pub(super) const LOST: &str = "the worker went away while the job ran";

/// The stream has ended. The worker has the grace time to come back; then its leases are lost, and the
/// attempts counted.
pub(super) fn detach(broker: &SharedBroker, session: &Arc<Session>, stream: u64) {
    let (unsent, drained) = {
        let mut state = session.state.lock();
        if state.stream != Some(stream) {
            return; // It is on another one by now.
        }
        state.stream = None;
        state.unanswered = 0;
        let unsent = state.take_unsent();
        state.outbox.clear();
        // A good end: it asked to drain, and closed its side.
        (unsent, state.draining && state.closing)
    };
    session.answered.notify_one();
    broker.dispatch().leave(session.key());
    broker.dispatch().give_back(unsent);
    broker.sessions().stream_ended();
    let (broker, session) = (broker.clone(), session.clone());
    if session.held_count() == 0 {
        broker.sessions().remove_if_ended(&session, stream);
        return;
    }
    // A worker that asked to drain and closed is not coming back. When the broker stops, whoever is left is
    // rescued by the others.
    let grace =
        if drained && !broker.is_draining() { std::time::Duration::ZERO } else { broker.config().session_grace };
    tokio::spawn(async move {
        tokio::time::sleep(grace).await;
        if broker.is_draining() || !broker.sessions().remove_if_ended(&session, stream) {
            return;
        }
        let leases = session.held();
        tracing::info!(session = session.id(), leases = leases.len(), "the worker did not come back: its jobs go back");
        broker.give_back(leases, Action::Lost, LOST);
    });
}

/// Leases that an adoption without an answer may have made this broker's: given back after the grace
/// time, unless the worker came back with them.
pub(super) fn give_back_unless_held(broker: &SharedBroker, leases: Vec<Lease>) {
    let broker = broker.clone();
    tokio::spawn(async move {
        tokio::time::sleep(broker.config().session_grace).await;
        let orphans = leases.into_iter().filter(|lease| !broker.sessions().holds(*lease)).collect();
        broker.give_back(orphans, Action::Lost, LOST);
    });
}

/// What a stream has to send.
pub(super) enum Outgoing {
    /// This.
    Message(ServerMessage),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    Over,
}

impl Session {
    /// Is on a new stream from now on, whose number this is; an old one ends.
    pub(super) fn next_stream(&self) -> u64 {
        let mut state = self.state.lock();
        state.streams += 1;
        state.stream = Some(state.streams);
        (state.closing, state.closing_now, state.draining, state.stalled) = (false, false, false, false);
        state.unanswered = 0;
        self.changed.notify_waiters();
        state.streams
    }

    /// Begins on its stream with what it still holds, and a Welcome. Returns what it held here before
    /// and its worker did not list: it never got them.
    pub(super) fn take_over(&self, adopted: &[Adopted], wanted: &[Lease], max_message_bytes: u64) -> Vec<Lease> {
        let still: HashSet<Lease> = adopted.iter().map(|a| a.lease).collect();
        let mut state = self.state.lock();
        let unlisted = state.held().into_iter().filter(|lease| !still.contains(lease)).collect();
        state.held.retain(|_, held| held.settling);
        state.outbox.clear();
        // If the broker has begun to stop meanwhile, its Drain has just been cleared: it must come again, after the Welcome.
        state.draining = false;
        state.max_message_bytes = max_message_bytes;
        for a in adopted {
            let held = Held { token: a.lease.token, type_id: a.type_id, bytes: a.bytes as u64, settling: false };
            // One whose outcome is being written stays so.
            state.held.entry(a.lease.id).or_insert(held);
        }
        let (kept, lost) = wanted.iter().partition(|lease| still.contains(lease));
        state.outbox.add_message(ServerMessage::Welcome { session_id: self.id.clone(), kept, lost });
        drop(state);
        self.changed.notify_one();
        unlisted
    }

    /// The worker closed its side: the stream ends when all is answered.
    pub(super) fn close(&self, stream: u64) {
        let mut state = self.state.lock();
        // An old stream's end is not that of a new one.
        state.closing |= state.stream == Some(stream);
        drop(state);
        self.changed.notify_one();
    }

    /// What goes out on this stream now.
    pub(super) fn next_message(&self, stream: u64, dispatch: &Dispatch) -> Outgoing {
        let mut state = self.state.lock();
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
