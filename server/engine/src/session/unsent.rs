//! Leases of the jobs in the answer to a `PullJobs` call, until the answer was sent.

use std::{
    mem,
    sync::atomic::{AtomicBool, Ordering},
};

use howdah_core::job::Lease;

use crate::settle::Release;

/// The leases of jobs in an answer. If this value is dropped before the answer was sent (hang-up, deadline), the leases
/// are released and their attempts do not count.
pub struct Unsent {
    leases: Vec<Lease>,
    release: Release,
    sent: AtomicBool,
}

impl Unsent {
    pub fn new(leases: Vec<Lease>, release: Release) -> Self {
        Self { leases, release, sent: AtomicBool::new(false) }
    }

    /// Takes over the leases of another answer that is merged into this one.
    pub(super) fn add(&mut self, mut other: Self) {
        self.leases.append(&mut other.leases);
    }

    /// Records that the answer was sent.
    pub fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let leases = mem::take(&mut self.leases);
        // Without a Tokio runtime, the process is ending, and the leases last until their deadlines.
        if let (false, false, Ok(runtime)) =
            (leases.is_empty(), *self.sent.get_mut(), tokio::runtime::Handle::try_current())
        {
            let release = self.release.clone();
            runtime.spawn(async move { release.release_pulled(leases).await });
        }
    }
}
