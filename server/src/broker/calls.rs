//! Enqueue, pull, settle, extend.

use std::time::Duration;

use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Instant,
};

use super::{Broker, RequestKey};
use crate::{
    error::Error,
    intake::Placed,
    job::{Lease, LeasedJob, NewJob, SettleStatus, Settlement, TaskTypeName, TypeId},
    settle::Returned,
    store::{Action, ClaimRequest, StoreError, Want},
};

impl Broker {
    /// Takes jobs to be stored, all or none, after those that it took before; waits while too much has gathered.
    pub async fn enqueue(&self, jobs: Vec<NewJob>, request: Option<RequestKey>) -> Result<Placed, Error> {
        self.intake.enqueue(jobs, request).await
    }

    /// Leases up to `max` ready jobs for `lease`, waiting up to `wait` for the first.
    pub async fn pull(
        &self,
        types: Vec<TaskTypeName>,
        max: usize,
        lease: Duration,
        wait: Duration,
    ) -> Result<Vec<LeasedJob>, Error> {
        let ids = self.registry().resolve(&types).await?;
        let until = Instant::now() + wait;
        // Registered before the first look: nothing that comes between is missed.
        let waiter = self.dispatch().wait_for(&ids);
        loop {
            if self.is_draining() {
                return Err(Error::Unavailable("the broker is stopping; ask another".into()));
            }
            let jobs = self.pull_once(&ids, max, lease).await?;
            if !jobs.is_empty() || Instant::now() >= until {
                return Ok(jobs);
            }
            // At the end of the wait, one last look.
            let _ = tokio::time::timeout_at(until, waiter.rung()).await;
        }
    }

    async fn pull_once(&self, types: &[TypeId], max: usize, lease: Duration) -> Result<Vec<LeasedJob>, Error> {
        let mut left = max;
        let mut jobs = Vec::new();
        let mut bytes = 0_u64;
        let message_bytes = self.config().limits.message_bytes;
        let mut types = types.to_vec();
        types.retain(|&type_id| !self.dispatch().is_paused(type_id));
        // Begin with another type each time, so that the first does not always fill the answer.
        let first = rand::random::<u32>() as usize % types.len().max(1);
        types.rotate_left(first);
        for chunk in types.chunks(512) {
            // Each type gets its share, and one at least: the total bounds them.
            let share = left.div_ceil(chunk.len());
            let want = |&type_id| Want { type_id, jobs: share as i32, floor: i64::MIN, largest: i64::MAX };
            let request = ClaimRequest {
                wants: chunk.iter().map(want).collect(),
                total: left as i32,
                broker_id: None,
                // The answer must fit one message, whatever the last job adds.
                bytes: (message_bytes / 2) as i64 - bytes as i64,
                lease_ms: Some(lease.as_millis() as i64),
                token_key: rand::random(),
                limited: chunk.iter().copied().filter(|id| self.dispatch().is_limited(*id)).collect(),
            };
            let claimed = self.claim_for_call(request).await?;
            left -= claimed.len().min(left);
            bytes += claimed.iter().map(|j| j.weight).sum::<u64>();
            jobs.extend(claimed);
            if left == 0 || bytes >= (message_bytes / 2) as u64 {
                break;
            }
        }
        self.context.metrics.claimed.inc_by(jobs.len() as u64);
        if let Some(ms) = jobs.iter().filter_map(|j| j.deadline_in_ms).min() {
            self.context.wake.deadline_in(Duration::from_millis(ms.max(0) as u64));
        }
        Ok(jobs)
    }

    /// A caller that goes away while the claim runs (a deadline, a reset) leaves nothing leased.
    async fn claim_for_call(&self, request: ClaimRequest) -> Result<Vec<LeasedJob>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let context = self.context.clone();
        tokio::spawn(async move {
            let claimed = context.store.claim(&request).await.map(|claimed| {
                // What expires without a stream has no owner.
                context.give_back.expired(claimed.expired, None);
                claimed.jobs
            });
            if let Err(Ok(jobs)) = answer.send(claimed) {
                let leases = jobs.iter().map(|job| job.lease).collect();
                let returned = Returned { leases, action: Action::Release, error: None, pulled: true };
                context.give_back.until_done(returned).await;
            }
        });
        answered.await.unwrap_or_else(|_| Err(StoreError::Unknown("the claim was cut short".into())))
    }

    /// Ends attempts; one status for each, in order.
    pub async fn settle(&self, settlements: Vec<Settlement>) -> Vec<SettleStatus> {
        let count = settlements.len();
        let _room = self.settle_room(&settlements).await;
        let (done, settled) = oneshot::channel();
        self.settle_then(settlements, move |statuses| drop(done.send(statuses)));
        match settled.await {
            Ok(statuses) => statuses.into_iter().map(|(_, status)| status).collect(),
            Err(_) => vec![SettleStatus::Unavailable; count],
        }
    }

    /// Waits until what these outcomes carry may wait for Postgres.
    pub(crate) async fn settle_room(&self, settlements: &[Settlement]) -> Option<OwnedSemaphorePermit> {
        self.settle.room(settlements).await
    }

    /// Ends attempts, then calls `done` with one status for each, in order.
    pub(crate) fn settle_then(
        &self,
        settlements: Vec<Settlement>,
        done: impl FnOnce(Vec<(Lease, SettleStatus)>) + Send + 'static,
    ) {
        self.settle.submit(settlements, done);
    }

    /// Moves deadlines to so long from now; one status for each, in order.
    pub async fn extend(&self, extensions: Vec<(Lease, Duration)>) -> Vec<SettleStatus> {
        if extensions.is_empty() {
            return Vec::new();
        }
        let mut sorted = extensions.clone();
        sorted.sort_unstable();
        sorted.dedup_by_key(|(lease, _)| lease.id);
        let result = self.store().extend(&sorted).await;
        if let Some(soonest) = extensions.iter().map(|(_, duration)| *duration).min() {
            self.context.wake.deadline_in(soonest);
        }
        match result {
            Ok(ids) => extensions
                .iter()
                .map(|e| {
                    if ids.contains(&e.0.id) && sorted.contains(e) { SettleStatus::Ok } else { SettleStatus::LeaseLost }
                })
                .collect(),
            Err(error) => {
                if let StoreError::Refused(_) = &error {
                    tracing::error!(%error, "extending was refused");
                }
                vec![SettleStatus::Unavailable; extensions.len()]
            }
        }
    }
}
