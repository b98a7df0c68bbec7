//! Extends the deadlines of attempts.

use std::time::Duration;

use howdah_core::job::{Lease, SettleStatus};

use super::Settle;
use crate::store::StoreError;

impl Settle {
    /// Sets the deadline of each attempt to its duration from now. Returns one status per extension, in order.
    pub async fn extend(&self, extensions: Vec<(Lease, Duration)>) -> Vec<SettleStatus> {
        if extensions.is_empty() {
            return Vec::new();
        }
        let mut locked = Vec::new();
        // The statement accepts each job id once.
        let mut sorted = extensions.clone();
        sorted.sort_unstable();
        sorted.dedup_by_key(|(lease, _)| lease.id);
        let mut result = self.store.extend(&sorted).await;
        if let Err(StoreError::Locked(_)) = &result {
            // Locked leases are answered UNAVAILABLE; the others are extended.
            let ids: Vec<i64> = sorted.iter().map(|(lease, _)| lease.id).collect();
            locked = self.store.locked_leases(&ids).await.unwrap_or_default();
            sorted.retain(|(lease, _)| !locked.contains(&lease.id));
            result = self.store.extend(&sorted).await;
        }
        if let Some(soonest) = extensions.iter().map(|(_, duration)| *duration).min() {
            self.wake.deadline_in(soonest);
        }
        let ids = match result {
            Ok(ids) => ids,
            Err(error) => {
                self.store.log_failure("extending leases", &error);
                return vec![SettleStatus::Unavailable; extensions.len()];
            }
        };
        sorted.retain(|(lease, _)| ids.contains(&lease.id));
        self.traces.extended(&sorted);
        let status = |extension: &(Lease, Duration)| {
            if locked.contains(&extension.0.id) {
                return SettleStatus::Unavailable;
            }
            if sorted.contains(extension) { SettleStatus::Ok } else { SettleStatus::LeaseLost }
        };
        extensions.iter().map(status).collect()
    }
}
