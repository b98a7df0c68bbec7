//! The number of Settle messages in flight.

use tokio::time::Instant;

/// The Settle messages of a stream that are not fully answered, oldest first.
///
/// While at least [`EAGER_MESSAGES`](Batches::EAGER_MESSAGES) messages are unanswered, outcomes accumulate until they number
/// a quarter of the slots. The next message then takes all of them. So messages grow under load, a single outcome is sent at
/// once, and few slots are idle because their outcomes wait. With [`MAX_MESSAGES`](Batches::MAX_MESSAGES) unanswered
/// messages, nothing is sent until a result arrives.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    open: Vec<Batch>,
    /// Number of the next batch. A batch is the outcomes of one Settle message.
    pub(crate) next: u64,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    unanswered: usize,
    sent_at: Instant,
}

impl Batches {
    const EAGER_MESSAGES: usize = 4;
    const MAX_MESSAGES: usize = 16;
    /// Divisor: a message is sent when the outcomes number a quarter of the slots.
    const SLOT_FRACTION: usize = 4;

    /// Whether no Settle message may be sent until a result arrives.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= Self::MAX_MESSAGES
    }

    /// Whether to send a Settle now, given the number of outcomes to send and the number of the worker's slots.
    pub(crate) fn takes(&self, outcomes: usize, slots: usize) -> bool {
        let is_eager = self.open.len() < Self::EAGER_MESSAGES;
        outcomes > 0 && (is_eager || (!self.is_full() && outcomes * Self::SLOT_FRACTION >= slots))
    }

    /// Records that the next batch is sent, with this many outcomes.
    pub(crate) fn sent(&mut self, outcomes: usize) {
        self.open.push(Batch { number: self.next, unanswered: outcomes, sent_at: Instant::now() });
        self.next += 1;
    }

    /// Records the result of one outcome of a batch.
    pub(crate) fn answered(&mut self, number: u64) {
        if let Some(position) = self.open.iter().position(|batch| batch.number == number) {
            self.open[position].unanswered -= 1;
            if self.open[position].unanswered == 0 {
                self.open.remove(position);
            }
        }
    }

    /// Send time of the oldest batch that has unanswered outcomes.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.open.first().map(|batch| batch.sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_sixteen_messages_are_unanswered_nothing_is_sent() {
        let mut batches = Batches::default();
        for _ in 0..16 {
            assert!(batches.takes(4, 16) && !batches.is_full());
            batches.sent(2);
        }
        assert!(!batches.takes(16, 16) && batches.is_full());
        batches.answered(3);
        assert!(batches.is_full(), "the message is only half answered");
        batches.answered(3);
        assert!(batches.takes(4, 16));
    }

    #[test]
    fn answers_may_come_in_any_order_and_twice() {
        let mut batches = Batches::default();
        for _ in 0..3 {
            batches.sent(1);
        }
        for number in [2, 0, 1, 1, 7] {
            batches.answered(number);
        }
        assert_eq!(batches.oldest(), None);
    }
}
