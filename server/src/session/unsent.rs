//! Leases of a call that are in an answer on its way.

use std::{
    mem,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{job::Lease, settle::Release};

/// The leases of an answer. If it is dropped before the answer was sent (the caller hung up, a deadline), they are
/// released: their attempts do not count.
pub(crate) struct Unsent {
    leases: Vec<Lease>,
    release: Release,
    sent: AtomicBool,
}

impl Unsent {
    pub(crate) fn new(leases: Vec<Lease>, release: Release) -> Self {
        Self { leases, release, sent: AtomicBool::new(false) }
    }

    /// Takes those of another part of the answer.
    pub(super) fn add(&mut self, mut other: Self) {
        self.leases.append(&mut other.leases);
    }

    /// The answer has been sent.
    pub(crate) fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let leases = mem::take(&mut self.leases);
        // Without a runtime, the process ends, and the leases last until their deadlines.
        if let (false, false, Ok(runtime)) =
            (leases.is_empty(), *self.sent.get_mut(), tokio::runtime::Handle::try_current())
        {
            let release = self.release.clone();
            runtime.spawn(async move { release.release_pulled(leases).await });
        }
    }
}
