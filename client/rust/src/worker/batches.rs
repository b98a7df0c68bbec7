//! The number of Settle messages in flight.

use std::collections::VecDeque;

use tokio::time::Instant;

/// The Settle messages of a stream that are not fully answered.
///
/// While at least [`EAGER_MESSAGES`](Batches::EAGER_MESSAGES) messages are unanswered, outcomes accumulate until they number
/// a quarter of the slots. The next message then takes all of them. So messages grow under load, a single outcome is sent at
/// once, and few slots are idle because their outcomes wait. With [`MAX_MESSAGES`](Batches::MAX_MESSAGES) unanswered
/// messages, nothing is sent until a result arrives.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    /// Number of the first batch in `open`. A batch is the outcomes of one Settle message.
    first: u64,
    open: VecDeque<Batch>,
    /// Number of batches in `open` with unanswered outcomes.
    unanswered: usize,
}

#[derive(Debug)]
struct Batch {
    left: usize,
    at: Instant,
}

impl Batches {
    const EAGER_MESSAGES: usize = 4;
    const MAX_MESSAGES: usize = 16;
    /// Divisor: a message is sent when the outcomes number a quarter of the slots.
    const SLOT_FRACTION: usize = 4;

    /// Whether no Settle message may be sent until a result arrives.
    pub(crate) fn is_full(&self) -> bool {
        self.unanswered >= Self::MAX_MESSAGES
    }

    /// Whether to send a Settle now, given the number of outcomes to send and the number of the worker's slots.
    pub(crate) fn takes(&self, outcomes: usize, slots: usize) -> bool {
        outcomes > 0
            && (self.unanswered < Self::EAGER_MESSAGES || (!self.is_full() && outcomes * Self::SLOT_FRACTION >= slots))
    }

    /// Number that the next batch will have.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.open.len() as u64
    }

    /// Records a sent batch with this many outcomes.
    pub(crate) fn sent(&mut self, outcomes: usize) {
        if outcomes > 0 {
            self.unanswered += 1;
        }
        self.open.push_back(Batch { left: outcomes, at: Instant::now() });
        self.forget();
    }

    /// Records the result of one outcome of a batch.
    pub(crate) fn answered(&mut self, batch: u64) {
        let position = batch.checked_sub(self.first);
        let Some(batch) = position.and_then(|position| self.open.get_mut(position as usize)) else {
            return;
        };
        if batch.left > 0 {
            batch.left -= 1;
            if batch.left == 0 {
                self.unanswered -= 1;
                self.forget();
            }
        }
    }

    /// Send time of the oldest batch that has unanswered outcomes.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.open.front().map(|batch| batch.at)
    }

    fn forget(&mut self) {
        while self.open.front().is_some_and(|batch| batch.left == 0) {
            self.open.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_gather_while_four_messages_are_unanswered() {
        let mut batches = Batches::default();
        assert!(!batches.takes(0, 16));
        for number in 0..4 {
            assert!(batches.takes(1, 16));
            assert_eq!(batches.next(), number);
            batches.sent(2);
        }
        assert!(!batches.takes(3, 16));
        assert!(batches.takes(4, 16), "a quarter of the slots");
        batches.answered(2);
        assert!(!batches.takes(1, 16), "half an answer is none");
        batches.answered(2);
        assert!(batches.takes(1, 16));
    }

    #[test]
    fn with_sixteen_messages_unanswered_nothing_is_sent() {
        let mut batches = Batches::default();
        for _ in 0..16 {
            assert!(!batches.is_full());
            assert!(batches.takes(4, 16));
            batches.sent(4);
        }
        assert!(batches.is_full());
        assert!(!batches.takes(16, 16));
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
        assert_eq!(batches.next(), 3);
    }
}
