//! Whether workers here may hold jobs: so that nobody looks through thousands of idle sessions every second.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by each session that gets a lease, and cleared by the one task that looks at all of them and finds none.
#[derive(Debug, Default)]
pub(super) struct Holding(AtomicBool);

impl Holding {
    /// A session has got leases. It calls this while its state is locked, after they are in it: who clears the mark before this
    /// finds them.
    pub(super) fn note(&self) {
        if !self.0.load(Ordering::Acquire) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Whether sessions have to be looked at. If `look` finds leases, they have to be looked at again.
    pub(super) fn look(&self, look: impl FnOnce() -> bool) {
        if self.0.swap(false, Ordering::AcqRel) && look() {
            self.note();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_looks_until_a_lease_comes_and_somebody_looks_until_none_is_left() {
        let holding = Holding::default();
        let looks = |found: bool| {
            let mut looked = false;
            holding.look(|| {
                looked = true;
                found
            });
            looked
        };
        assert!(!looks(false));
        holding.note();
        holding.note();
        assert!(looks(true) && looks(true) && looks(false));
        assert!(!looks(false));
        holding.note();
        // One that comes during a look that does not find it any more.
        holding.look(|| {
            holding.note();
            false
        });
        assert!(looks(false) && !looks(false));
    }
}
