//! Memory of jobs that are assigned to workers and not sent yet. A worker chooses its window, which may exceed the
//! whole memory. So all jobs that wait for slow workers share one bound. While it is exhausted, no job is claimed or
//! goes direct. One session, or all sessions of one principal, may use a quarter.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::memory::SHARE;

/// Memory budget of jobs that wait to be sent.
pub(crate) struct UnsentMemory {
    most: u64,
    used: Mutex<Used>,
    /// Notified when the memory budget has room again.
    pub(super) freed: Notify,
}

#[derive(Default)]
struct Used {
    bytes: u64,
    by_principal: HashMap<Arc<str>, u64>,
}

/// Memory that the unsent jobs of one session use.
pub(crate) struct Charge {
    memory: Arc<UnsentMemory>,
    principal: Arc<str>,
    bytes: u64,
}

impl UnsentMemory {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most as u64, used: Mutex::default(), freed: Notify::new() })
    }

    /// Returns the number of bytes that may still be claimed.
    pub(super) fn room(&self) -> u64 {
        self.most.saturating_sub(self.used.lock().bytes)
    }

    /// Creates the memory charge of a session, with 0 bytes.
    pub(crate) fn charge(self: &Arc<Self>, principal: &Arc<str>) -> Charge {
        Charge { memory: self.clone(), principal: principal.clone(), bytes: 0 }
    }

    fn share(&self) -> u64 {
        self.most / SHARE as u64
    }
}

impl Charge {
    /// Charges bytes of jobs that wait to be sent. The jobs are claimed already, so the charge may exceed the budget.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        let mut used = self.memory.used.lock();
        used.bytes += bytes;
        // Without authentication all callers have the same empty principal, so only the bound per session applies.
        if !self.principal.is_empty() {
            *used.by_principal.entry(self.principal.clone()).or_default() += bytes;
        }
    }

    /// Subtracts bytes of jobs that were sent or taken back.
    pub(crate) fn subtract(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let mut used = self.memory.used.lock();
        let was_short = used.bytes >= self.memory.most;
        used.bytes -= bytes;
        if let Some(of_principal) = used.by_principal.get_mut(&self.principal) {
            *of_principal -= bytes;
            if *of_principal == 0 {
                used.by_principal.remove(&self.principal);
            }
        }
        if was_short && used.bytes < self.memory.most {
            self.memory.freed.notify_one();
        }
    }

    /// Returns whether the session, or its principal, has used up its share of the memory for unsent jobs.
    pub(crate) fn is_full(&self) -> bool {
        let share = self.memory.share();
        let of_principal = self.memory.used.lock().by_principal.get(&self.principal).copied().unwrap_or_default();
        self.bytes >= share || of_principal >= share
    }

    /// Returns whether few bytes wait to be sent to the session, so that it may get more jobs.
    pub(crate) fn is_low(&self) -> bool {
        self.bytes <= self.memory.share() / 2
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_the_memory_and_a_principal_has_a_quarter_with_all_of_them() {
        let memory = UnsentMemory::new(400);
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let (mut one, mut two, mut other) = (memory.charge(&ann), memory.charge(&ann), memory.charge(&bob));
        one.add(60);
        assert!(!one.is_full() && !one.is_low());
        two.add(40);
        assert!(one.is_full() && two.is_full() && two.is_low() && !other.is_full());
        other.add(350);
        assert!(other.is_full() && memory.room() == 0);
        one.subtract(60);
        assert_eq!(memory.room(), 10);
        drop((one, two, other));
        assert!(memory.room() == 400 && memory.used.lock().by_principal.is_empty());
    }

    #[tokio::test]
    async fn waiters_are_notified_when_unsent_memory_is_free_again() {
        let memory = UnsentMemory::new(100);
        let mut charge = memory.charge(&"".into());
        charge.add(150);
        charge.subtract(20);
        assert!(futures::FutureExt::now_or_never(memory.freed.notified()).is_none());
        drop(charge);
        memory.freed.notified().await;
    }
}
