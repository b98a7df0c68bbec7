//! Memory accounts: the usage of a connection, as a part of its principal's usage.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Memory usage of one connection, or of one principal with all of its connections. Changes only while the memory is locked.
#[derive(Debug, Default)]
pub(crate) struct Account {
    used: AtomicUsize,
    waiting: AtomicUsize,
    /// Account that counts this account's usage, too: for a connection its principal. `None` if no other account counts
    /// it.
    of: Option<Arc<Account>>,
}

impl Account {
    /// Creates an account whose usage also counts for `whole`.
    pub(crate) fn part_of(whole: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { of: Some(whole.clone()), ..Self::default() })
    }

    /// This account and the accounts that include it.
    fn each(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |account| account.of.as_deref())
    }

    /// Whether a holder of `own` bytes may get `more`: its account holds nothing else, or stays within `share`.
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

    /// Whether the maximum number of requests is waiting.
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

    /// Bytes in use, and number of waiting requests.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.used.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed))
    }
}
