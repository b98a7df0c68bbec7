//! Executes bulk operations in batches of jobs, with pauses for other work. The broker that owns a bulk operation executes it;
//! when the owner's row has expired, another broker takes it over. Each transaction that changes jobs also counts them, if the
//! bulk operation is still running and still owned by this broker. The position in the selection is stored in a separate
//! transaction. If that transaction is lost, no job is changed twice, because the selection does not find changed jobs again.

use std::time::{Duration, Instant};

use howdah_core::job::{Bulk, BulkChange, BulkState, JobState, PagePosition};

use super::Operator;
use crate::{
    maintain::until_done,
    operate::RetryAnswer,
    store::{Actor, BulkChanged, Lane, LockWait, PickBulk, StoreError},
};

/// Maximum number of jobs that one transaction of a bulk operation changes.
pub const BATCH: i32 = 1_000;
/// A broker spends 1/`SHARE` of the time of one connection on bulk operations.
pub const SHARE: u32 = 5;
/// Maximum number of passes over the jobs of a bulk operation. Later passes find jobs that have moved or were locked.
pub const ROUNDS: i32 = 10;
/// Maximum pause after a batch, unless a rate is set. A batch that is slower than usual has waited for a lock or for the disk,
/// so a pause in proportion would be too long.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Executes the bulk operations that this broker owns, and those without an owner.
pub(crate) async fn run(operator: Operator) {
    loop {
        operator.context.wake.bulk_alarm().rung().await;
        until_done(&operator.context, "working on bulk operations", || operator.work_on_bulks()).await;
    }
}

impl Operator {
    /// Executes a batch of the due bulk operation, and sets the alarm for the next one.
    async fn work_on_bulks(&self) -> Result<(), StoreError> {
        let (store, broker_id) = (&self.context.store, self.context.dispatch.broker_id());
        if let Some(bulk) = store.claim_bulk(broker_id).await? {
            match self.batch(&bulk, broker_id).await {
                // If Postgres rejects the statements of a bulk operation, it is paused. Otherwise the broker would retry it
                // forever and delay the other bulk operations.
                Err(error) if error.is_refused() => self.give_up(&bulk, &error).await?,
                result => result?,
            }
        }
        if let Some(delay) = store.next_bulk(broker_id).await? {
            self.context.wake.bulk_in(delay);
        }
        Ok(())
    }

    async fn batch(&self, bulk: &Bulk, broker_id: i32) -> Result<(), StoreError> {
        let (store, begun, states) = (&self.context.store, Instant::now(), bulk.spec.states());
        let from = bulk.at.or_else(|| states.first().copied().map(PagePosition::first));
        let (mut next, mut jobs) = (None, 0);
        if let Some(from) = from {
            let at_most = bulk.spec.jobs_per_s.map_or(BATCH, |rate| rate.clamp(1, BATCH));
            let (type_id, last_id, before) = (bulk.type_id, bulk.last_job_id, bulk.created);
            let pick = PickBulk { type_id, spec: &bulk.spec, from, at_most, last_id, before };
            let picked = store.pick_for_bulk(&pick).await?;
            jobs = picked.ids.len();
            if !self.change(bulk, broker_id, from.state, picked.ids).await? {
                return Ok(());
            }
            next = picked.next.or_else(|| PagePosition::after(from.state, &states));
        }
        let pause = pause(bulk.spec.jobs_per_s, begun.elapsed(), jobs);
        if store.advance_bulk(bulk, broker_id, next, pause, ROUNDS).await? == Some(BulkState::Completed) {
            tracing::info!(bulk = bulk.id, operation = bulk.spec.change.name(), "a bulk operation is completed");
        }
        Ok(())
    }

    /// Changes jobs, in smaller parts if some of them are locked or cause errors. Returns false if the bulk operation was
    /// paused or this broker no longer owns it.
    async fn change(&self, bulk: &Bulk, broker_id: i32, state: JobState, ids: Vec<i64>) -> Result<bool, StoreError> {
        let by = self.actor_of(bulk);
        let (mut store, mut todo) = (self.context.store.clone(), vec![ids]);
        while let Some(mut part) = todo.pop() {
            if part.is_empty() {
                continue;
            }
            match store.change_in_bulk(bulk, broker_id, (state, &part), &by).await {
                Ok(None) => return Ok(false),
                Ok(Some(changed)) => self.report(changed),
                Err(error) if error.may_spare_other_jobs() || matches!(error, StoreError::Locked(_)) => {
                    // Use the side lane, so that other statements do not wait behind these jobs.
                    store = self.context.store.side_lane(Lane::Operate, LockWait::Short);
                    if part.len() > 1 {
                        let second = part.split_off(part.len() / 2);
                        todo.extend([second, part]);
                    } else if let StoreError::RolledBack(_) = error {
                        return Err(error);
                    } else {
                        let id = part.first().copied().unwrap_or_default();
                        self.context.store.fail_in_bulk(bulk.id, &format!("job {id}: {}", error.public_text())).await?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Notifies workers and brokers of the changed jobs.
    fn report(&self, changed: BulkChanged) {
        let dispatch = &self.context.dispatch;
        match changed {
            BulkChanged::Retried(jobs, revived) => self.retried((jobs, revived), &mut RetryAnswer::default()),
            BulkChanged::Cancelled(jobs, woken) => {
                woken.iter().for_each(|wakeups| dispatch.wakeups(wakeups));
                self.notify_workers(&jobs);
            }
            BulkChanged::Discarded(_, wakeups) | BulkChanged::Changed(_, wakeups) => dispatch.wakeups(&wakeups),
            BulkChanged::Reprioritized(jobs) => self.announce_ranks(&jobs),
        }
    }

    /// Returns the actor for the audit log: the caller that started the bulk operation.
    fn actor_of(&self, bulk: &Bulk) -> Actor {
        let Bulk { id, principal, peer, reason, .. } = bulk;
        let more = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        // Details of the change that the audit log shows in addition to the name of the call.
        let what = match &bulk.spec.change {
            BulkChange::Undo(of) => format!(" (undo of {of})"),
            BulkChange::Move(to) => format!(" (move to {to})"),
            BulkChange::Set(_) => " (set)".to_owned(),
            _ => String::new(),
        };
        Actor {
            principal: Some(principal.as_str().into()),
            broker: Some(self.context.config.name.clone()),
            peer: Some(peer.clone()),
            method: bulk.spec.change.method(),
            reason: format!("bulk operation {id}{what}{more}"),
        }
    }

    /// Pauses a bulk operation whose statements Postgres rejects, and records the error.
    async fn give_up(&self, bulk: &Bulk, error: &StoreError) -> Result<(), StoreError> {
        tracing::error!(bulk = bulk.id, %error, "a bulk operation was paused because Postgres refused its statement");
        let problem = format!("{}; see the log of the broker", error.public_text());
        self.context.store.fail_in_bulk(bulk.id, &problem).await?;
        let by = self.actor_of(bulk);
        self.context.store.change_bulk(bulk, BulkState::Paused, &[BulkState::Running], &by).await.map(drop)
    }
}

/// Returns the pause after a batch, which leaves time for other work and keeps the requested rate of jobs per second.
fn pause(jobs_per_s: Option<i32>, took: Duration, jobs: usize) -> Duration {
    let share = (took * (SHARE - 1)).min(LONGEST_PAUSE);
    let rate = jobs_per_s.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(jobs as f64 / f64::from(rate.max(1))));
    share.max(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_works_on_bulk_operations_a_fifth_of_the_time_or_as_fast_as_wanted() {
        let ms = Duration::from_millis;
        assert_eq!(pause(None, ms(20), 1_000), ms(80));
        assert_eq!(pause(None, ms(60_000), 1_000), ms(2_000));
        assert_eq!(pause(Some(100), ms(20), 100), ms(1_000));
        assert_eq!(pause(Some(1_000_000), ms(20), 1_000), ms(80));
    }
}
