//! Memory accounts: the memory usage of each connection and each principal. A connection's usage also counts for its
//! principal.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Memory usage of one connection, or of one principal with all of its connections. The counters change only while the
/// budget's mutex is locked.
#[derive(Debug, Default)]
pub struct Account {
    used: AtomicUsize,
    waiting: AtomicUsize,
    /// Account that includes this one: the principal's account for a connection, `None` for a principal.
    of: Option<Arc<Account>>,
}

impl Account {
    /// Creates an account whose usage also counts for `whole`.
    pub fn part_of(whole: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { of: Some(whole.clone()), ..Self::default() })
    }

    /// Iterates over this account and the accounts that include it.
    fn each(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |account| account.of.as_deref())
    }

    /// Whether the account may grow by `more` bytes for a requester that holds `own` bytes. It may if the sum is at
    /// most `share`, or if the requester holds all of the account's memory.
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

    /// Whether `most` requests already wait in this account or in one that includes it.
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

    /// Returns the bytes in use and the number of waiting requests.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.used.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed))
    }
}
