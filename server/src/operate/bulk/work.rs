//! Works off bulk operations: one batch of jobs, then a pause in which other work goes on. Whoever owns a bulk operation
//! works on it; when its owner's row has expired, another broker takes it. Each transaction that changes jobs also counts
//! them, if the bulk operation is still running and still this broker's. The position follows in a transaction of its own:
//! jobs that were changed are not found a second time.

use std::time::{Duration, Instant};

use super::{Operator, start_of, state_after};
use crate::{
    job::{Bulk, BulkChange, BulkState, JobState},
    maintain::until_done,
    operate::RetryAnswer,
    store::{Actor, BulkChanged, Lane, Patience, PickBulk, StoreError},
};

/// The most jobs in a transaction.
pub(crate) const BATCH: i32 = 1_000;
/// A broker works on bulk operations for one part of so many of the time of a connection.
pub(crate) const SHARE: u32 = 5;
/// How often jobs are looked for that have moved or were locked.
pub(crate) const ROUNDS: i32 = 10;
/// The longest pause after a batch; one that is slower than usual has waited for something.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Works on the bulk operations of this broker, and on those without one.
pub(crate) async fn always(operator: Operator) {
    loop {
        operator.context.wake.bulk_alarm().rung().await;
        until_done(&operator.context, "working on bulk operations", || operator.work_on_bulks()).await;
    }
}

impl Operator {
    /// A batch of the bulk operation that is due, and the alarm for the next one.
    async fn work_on_bulks(&self) -> Result<(), StoreError> {
        let (store, broker_id) = (&self.context.store, self.context.dispatch.broker_id());
        if let Some(bulk) = store.claim_bulk(broker_id).await? {
            match self.batch(&bulk, broker_id).await {
                // Otherwise it would be tried again and again, and no other bulk operation would go on.
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
        let from = bulk.at.or_else(|| states.first().copied().map(start_of));
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
            next = picked.next.or_else(|| state_after(&states, from.state));
        }
        let pause = pause(bulk.spec.jobs_per_s, begun.elapsed(), jobs);
        if store.advance_bulk(bulk, broker_id, next, pause, ROUNDS).await? == Some(BulkState::Completed) {
            tracing::info!(bulk = bulk.id, operation = bulk.spec.change.name(), "a bulk operation is completed");
        }
        Ok(())
    }

    /// Changes these jobs; in parts, if some of them are locked or refused. False: it is not this broker's any more, or was
    /// paused.
    async fn change(&self, bulk: &Bulk, broker_id: i32, state: JobState, ids: Vec<i64>) -> Result<bool, StoreError> {
        let by = self.actor_of(bulk);
        let (mut store, mut todo) = (self.context.store.clone(), vec![ids]);
        while let Some(mut part) = todo.pop() {
            if part.is_empty() {
                continue;
            }
            match store.change_in_bulk(bulk, broker_id, (state, &part), &by).await {
                Ok(None) => return Ok(false),
                Ok(Some(changed)) => self.tell(changed),
                Err(error) if error.is_refused() || matches!(error, StoreError::Locked(_)) => {
                    // Whoever else works does not wait for these.
                    store = self.context.store.aside(Lane::Operate, Patience::Short);
                    if part.len() > 1 {
                        let second = part.split_off(part.len() / 2);
                        todo.extend([second, part]);
                    } else {
                        let id = part.first().copied().unwrap_or_default();
                        self.context.store.fail_in_bulk(bulk.id, &format!("job {id}: {}", error.told())).await?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Tells workers and brokers what has changed.
    fn tell(&self, changed: BulkChanged) {
        let dispatch = &self.context.dispatch;
        match changed {
            BulkChanged::Retried(jobs, revived) => self.retried((jobs, revived), &mut RetryAnswer::default()),
            BulkChanged::Cancelled(jobs, woken) => {
                woken.iter().for_each(|wakeups| dispatch.wakeups(wakeups));
                self.tell_workers(&jobs);
            }
            BulkChanged::Discarded(_, wakeups) | BulkChanged::Made(_, wakeups) => dispatch.wakeups(&wakeups),
            BulkChanged::Reprioritized(jobs) => self.announce_ranks(&jobs),
        }
    }

    /// Whoever started it, as if they had called for these jobs.
    fn actor_of(&self, bulk: &Bulk) -> Actor {
        let Bulk { id, principal, peer, reason, .. } = bulk;
        let more = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        // What the name of the call does not say.
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

    /// Pauses a bulk operation that Postgres refuses.
    async fn give_up(&self, bulk: &Bulk, error: &StoreError) -> Result<(), StoreError> {
        tracing::error!(bulk = bulk.id, %error, "a bulk operation was paused because Postgres refuses it");
        let problem = format!("{}; the log of the broker says more", error.told());
        self.context.store.fail_in_bulk(bulk.id, &problem).await?;
        let by = self.actor_of(bulk);
        self.context.store.change_bulk(bulk, BulkState::Paused, &[BulkState::Running], &by).await.map(drop)
    }
}

/// How long to wait after a batch, so that other work goes on and no more jobs are changed in a second than wanted.
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
