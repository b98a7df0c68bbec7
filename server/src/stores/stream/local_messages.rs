//! Messages to the worker that no store sends: answers about jobs of unknown or unreachable stores, and pings.

use howdah_core::job::{Lease, SettleStatus};
use howdah_engine::session::{Answer, CancelReason, Outbox, ServerMessage};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Outgoing messages that come from no store.
#[derive(Default)]
pub(super) struct LocalMessages {
    state: Mutex<State>,
    /// Notified when there is a message to send.
    pub(super) changed: Notify,
    answered: Notify,
}

#[derive(Default)]
struct State {
    outbox: Outbox,
    unanswered: usize,
}

/// Kind of the worker's message that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Settled,
    Extended,
    Progressed,
}

impl LocalMessages {
    pub(super) fn answer(&self, kind: Kind, answers: Vec<Answer>) {
        if answers.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.unanswered += answers.len();
        match kind {
            Kind::Settled => state.outbox.add_answers(answers),
            Kind::Extended => state.outbox.add_extended(answers),
            Kind::Progressed => state.outbox.add_progressed(answers),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Answers all leases with the same status.
    pub(super) fn answer_all(&self, kind: Kind, leases: impl Iterator<Item = Lease>, status: SettleStatus) {
        self.answer(kind, leases.map(|lease| Answer { lease, status: Ok(status) }).collect());
    }

    pub(super) fn lost(&self, leases: Vec<Lease>) {
        if !leases.is_empty() {
            self.state.lock().outbox.add_cancelled(leases, CancelReason::LeaseLost);
            self.changed.notify_one();
        }
    }

    /// Answers a ping of the worker.
    pub(super) fn answer_ping(&self) {
        self.state.lock().outbox.add_pong();
        self.changed.notify_one();
    }

    /// Sends a ping to the worker.
    pub(super) fn ping(&self) {
        self.state.lock().outbox.add_ping();
        self.changed.notify_one();
    }

    pub(super) fn next(&self, max_bytes: u64) -> Option<ServerMessage> {
        let mut state = self.state.lock();
        let (message, answers) = state.outbox.next(max_bytes)?;
        state.unanswered = state.unanswered.saturating_sub(answers);
        drop(state);
        if answers > 0 {
            self.answered.notify_one();
        }
        Some(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().outbox.is_empty()
    }

    /// Waits until at most `most` answers are queued: backpressure on a worker that sends faster than it reads answers.
    pub(super) async fn until_answered(&self, most: usize) {
        loop {
            let answered = self.answered.notified();
            if self.state.lock().unanswered <= most {
                return;
            }
            answered.await;
        }
    }
}
