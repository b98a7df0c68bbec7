//! Counts the settle messages of a session that are being written.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of unanswered settle messages below which a worker never holds back outcomes, if it follows the advice for
/// client authors (docs/reference/protocol.md).
const MIN_UNANSWERED: usize = 3;

/// Number of unanswered settle messages: the current one and the highest so far.
///
/// A worker may hold back outcomes while a certain number of its settle messages is unanswered. The broker does not
/// know this number, but has never seen more unanswered messages. So when nearly as many are unanswered as ever, the
/// outcomes skip the commit delay.
#[derive(Default)]
pub(super) struct Settling {
    current: AtomicUsize,
    highest: AtomicUsize,
}

impl Settling {
    /// Counts another settle message. Returns whether the worker may be about to hold back the next one.
    pub(super) fn begin(&self) -> bool {
        let current = self.current.fetch_add(1, Relaxed) + 1;
        let highest = self.highest.fetch_max(current, Relaxed);
        current >= MIN_UNANSWERED && current + 1 >= highest
    }

    /// Counts a settle message as answered.
    pub(super) fn end(&self) {
        self.current.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_skip_the_commit_delay_when_nearly_as_many_messages_are_unanswered_as_ever() {
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
