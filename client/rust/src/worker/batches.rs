//! The number of Settle messages in flight.

use std::collections::VecDeque;

use tokio::time::Instant;

/// The Settle messages of a stream that are not fully answered.
///
/// While [`FEW`](Batches::FEW) of them are, outcomes gather until a quarter of the slots have ended with one, and the next message takes
/// all of them. So messages grow under load, a single outcome is sent at once, and no more than a quarter of the slots stand idle
/// because their outcomes wait here. With [`MOST`](Batches::MOST), nothing is sent until an answer comes.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    /// The number of the first in `open`.
    first: u64,
    open: VecDeque<Batch>,
    /// How many in `open` have outcomes left.
    unanswered: usize,
}

#[derive(Debug)]
struct Batch {
    left: usize,
    at: Instant,
}

impl Batches {
    const FEW: usize = 4;
    const MOST: usize = 16;
    /// The part of the slots whose outcomes gather.
    const PART: usize = 4;

    /// Nothing is sent until an answer comes.
    pub(crate) fn is_full(&self) -> bool {
        self.unanswered >= Self::MOST
    }

    /// Whether so many outcomes of a worker with so many slots are sent now.
    pub(crate) fn takes(&self, outcomes: usize, slots: usize) -> bool {
        outcomes > 0 && (self.unanswered < Self::FEW || (!self.is_full() && outcomes * Self::PART >= slots))
    }

    /// The number of the next batch.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.open.len() as u64
    }

    /// A batch with this many outcomes was sent.
    pub(crate) fn sent(&mut self, outcomes: usize) {
        if outcomes > 0 {
            self.unanswered += 1;
        }
        self.open.push_back(Batch { left: outcomes, at: Instant::now() });
        self.forget();
    }

    /// One outcome of a batch was answered.
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

    /// When the oldest batch that is not fully answered was sent.
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
