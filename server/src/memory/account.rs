//! Whose use of a memory is counted: a connection, as part of a principal.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The use that one connection makes of a memory, or one principal with all of its connections. Only the memory changes it,
/// while it is locked.
#[derive(Debug, Default)]
pub(crate) struct Account {
    used: AtomicUsize,
    waiting: AtomicUsize,
    /// What this one uses is used by that one too.
    of: Option<Arc<Account>>,
}

impl Account {
    /// An account whose use counts for another one, too.
    pub(crate) fn part_of(whole: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { of: Some(whole.clone()), ..Self::default() })
    }

    /// This one, and what it is part of.
    fn each(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |account| account.of.as_deref())
    }

    /// Whether the holder of `own` bytes may have more: the account has nothing else, or stays within its share.
    pub(super) fn fits(&self, own: usize, more: usize, share: usize) -> bool {
        self.each().all(|account| {
            let used = account.used.load(Ordering::Relaxed);
            used == own || used + more <= share
        })
    }

    pub(super) fn add(&self, bytes: usize) {
        for account in self.each() {
            account.used.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn subtract(&self, bytes: usize) {
        for account in self.each() {
            account.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Whether as many wait as may.
    pub(super) fn has_waiting(&self, most: usize) -> bool {
        self.each().any(|account| account.waiting.load(Ordering::Relaxed) >= most)
    }

    pub(super) fn begin_to_wait(&self) {
        for account in self.each() {
            account.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn end_to_wait(&self) {
        for account in self.each() {
            account.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Bytes in use, and how many wait.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.used.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed))
    }
}
