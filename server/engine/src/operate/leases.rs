//! Ends leases on behalf of operators.

use std::collections::BTreeSet;

use howdah_core::{
    error::Error,
    job::{Chosen, JobState, PagePosition},
};
use parking_lot::Mutex;

use super::{Operator, Selection, selection::Walk};
use crate::{
    store::{Actor, Store, StoreError},
    wake::Loss,
};

/// Maximum number of leases that a statement ends.
const BATCH: usize = 1_000;
/// Maximum number of times that the leases are read. A lease may move to another broker between its read and its end.
const LOOKS: usize = 3;

impl Operator {
    /// Ends the leases of the selected jobs, and tells their workers. If `error` is set, the attempts fail; otherwise they do
    /// not count. Returns the ids of the jobs whose leases were ended, and the position at which the next call continues.
    pub async fn end_leases(
        &self,
        selection: Selection,
        error: Option<&str>,
        by: &Actor,
    ) -> Result<(Vec<i64>, Option<PagePosition>), Error> {
        let selection = match selection {
            Selection::Ids(jobs) => return Ok((self.end_leases_of(jobs, error, by).await?, None)),
            Selection::OfType(selection) => selection,
        };
        let mut ended = Vec::new();
        let mut walk = Walk::of_type(self, &selection, false, &[JobState::Leased]).await?;
        while let Some((_, jobs)) = walk.next().await? {
            ended.extend(self.end_leases_of(jobs, error, by).await?);
        }
        Ok((ended, walk.rest()))
    }

    async fn end_leases_of(&self, jobs: Chosen, error: Option<&str>, by: &Actor) -> Result<Vec<i64>, Error> {
        let mut ids = jobs.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let ended = Mutex::new(BTreeSet::new());
        for batch in ids.chunks(BATCH) {
            let end = |store: Store, ids: Vec<i64>| self.end_found(store, jobs.but(ids), (error, by), &ended);
            self.but_for_locked(batch.to_vec(), end, |()| {}).await?;
        }
        Ok(ended.into_inner().into_iter().collect())
    }

    /// Ends leases, and adds the ids of their jobs to `ended` at once, so that they are reported even if the function fails
    /// later.
    async fn end_found(
        &self,
        store: Store,
        mut left: Chosen,
        (error, by): (Option<&str>, &Actor),
        ended: &Mutex<BTreeSet<i64>>,
    ) -> Result<(), StoreError> {
        for _ in 0..LOOKS {
            // Jobs whose lease has been ended are skipped, because they may already run again at another worker.
            left.ids.retain(|id| !ended.lock().contains(id));
            let leases = store.leases_of(&left).await?;
            if leases.is_empty() {
                break;
            }
            let (now, result) = self.context.release.end_for_operator(store.clone(), &leases, error, by).await;
            self.context.tell_workers(now.iter().copied().filter(|(_, broker)| *broker != 0), Loss::Moved);
            ended.lock().extend(now.iter().map(|(lease, _)| lease.id));
            result?;
        }
        Ok(())
    }
}
