//! Messages with outcomes that are being written, of one session.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// With fewer messages unanswered, no worker holds back outcomes, if it heeds our advice to authors of clients
/// (docs/reference/protocol.md).
const FEWEST: usize = 3;

/// How many there are.
///
/// A worker may hold back outcomes while so many messages are unanswered, and stands still until an answer comes. It does not tell how
/// many that is, but it has never had more unanswered. So when nearly as many are as ever were, its outcomes are not kept
/// waiting for others.
#[derive(Default)]
pub(super) struct Settling {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Settling {
    /// Another message is being written. Returns whether its worker may be about to hold back the next one.
    pub(super) fn begin(&self) -> bool {
        let now = self.now.fetch_add(1, Relaxed) + 1;
        let most = self.most.fetch_max(now, Relaxed);
        now >= FEWEST && now + 1 >= most
    }

    /// A message was answered.
    pub(super) fn end(&self) {
        self.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_may_hold_back_outcomes_when_one_message_fewer_is_unanswered_than_ever_was() {
        let settling = Settling::default();
        let begin = |messages: usize| (0..messages).map(|_| settling.begin()).collect::<Vec<_>>();
        let end = |messages: usize| (0..messages).for_each(|_| settling.end());
        assert_eq!(begin(4), [false, false, true, true]);
        end(4);
        assert_eq!(begin(4), [false, false, true, true]);
        assert_eq!(begin(4), [true; 4], "it has not held back any yet");
        end(8);
        assert_eq!(begin(8), [false, false, false, false, false, false, true, true]);
    }
}
