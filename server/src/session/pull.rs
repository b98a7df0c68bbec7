//! Jobs for a worker without a stream, which calls for them. No broker owns such a lease: it lasts until its deadline.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{JOB_OVERHEAD, SessionContext, Unsent};
use crate::{
    error::Error,
    job::{LeasedJob, TaskTypeName, TypeId},
    memory::{AnswerMemory, Held},
    store::{ClaimRequest, StoreError, Want},
};

/// The most types in a statement.
const CLAIM_TYPES: usize = 512;
/// Bytes of jobs in an answer, without those of its last job.
pub(crate) const PULL_BYTES: u64 = 2 << 20;

impl SessionContext {
    /// Leases up to `max` ready jobs for `lease`, waiting up to `wait` for the first. They are released if the answer with
    /// them is not sent. `room` takes memory for them, `by` is the caller's principal.
    pub(crate) async fn pull(
        self: &Arc<Self>,
        types: Vec<TaskTypeName>,
        max: usize,
        lease: Duration,
        wait: Duration,
        (room, by): (AnswerMemory, &str),
    ) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
        let ids = self.registry.resolve(&types, by).await?;
        let until = Instant::now() + wait;
        // Until the call ends, however it does.
        let _pulling = self.sessions.pulls.begin(&ids);
        // Registered before the first look, so that no job that comes in between is missed.
        let waiter = self.dispatch.wait_for(&ids);
        loop {
            if self.is_draining() {
                return Err(Error::Unavailable("the broker is stopping; call another one".into()));
            }
            // Not held while the call waits for jobs.
            let held = room.take(2 * (PULL_BYTES as usize + self.registry.cluster().job_bytes())).await?;
            let jobs = self.pull_once(&ids, max, lease).await?;
            if !jobs.0.is_empty() || Instant::now() >= until {
                return Ok((jobs.0, jobs.1, held));
            }
            drop(held);
            // When the wait is over, look once more.
            let _ = tokio::time::timeout_at(until, waiter.rung()).await;
        }
    }

    /// Leases what is ready now.
    pub(crate) async fn pull_once(
        self: &Arc<Self>,
        types: &[TypeId],
        max: usize,
        lease: Duration,
    ) -> Result<(Vec<LeasedJob>, Unsent), Error> {
        let mut left = max;
        let mut jobs = Vec::new();
        let mut unsent = Unsent::new(Vec::new(), self.release.clone());
        let mut bytes = 0_u64;
        // The answer must fit one message, whatever the last job adds.
        let message_bytes = self.config.limits.message_bytes as u64;
        let most_bytes = PULL_BYTES
            .min(message_bytes / 2)
            .min(message_bytes.saturating_sub(self.registry.cluster().job_bytes() as u64))
            .max(1);
        let largest = message_bytes.saturating_sub(JOB_OVERHEAD) as i64;
        let mut types = types.to_vec();
        types.retain(|&type_id| !self.dispatch.is_paused(type_id));
        // Start with another type each time, so that the first one does not always fill the answer.
        let first = rand::random::<u32>() as usize % types.len().max(1);
        types.rotate_left(first);
        for chunk in types.chunks(CLAIM_TYPES) {
            // Each type gets its share, at least one job: the total bounds them.
            let share = left.div_ceil(chunk.len());
            let want = |&type_id| Want { type_id, jobs: share as i32, floor: i64::MIN, largest };
            let limited = chunk.iter().copied().filter(|id| self.dispatch.is_limited(*id)).collect();
            let request = ClaimRequest {
                bytes: most_bytes as i64 - bytes as i64,
                lease_ms: Some(lease.as_millis() as i64),
                ..ClaimRequest::new(chunk.iter().map(want).collect(), limited, left as i32)
            };
            let (claimed, leases) = self.claim_for_call(request).await?;
            unsent.add(leases);
            left -= claimed.len().min(left);
            bytes += claimed.iter().map(|j| j.weight).sum::<u64>();
            jobs.extend(claimed);
            if left == 0 || bytes >= most_bytes {
                break;
            }
        }
        self.dispatch.pulled(&mut jobs);
        Ok((jobs, unsent))
    }

    /// If the caller goes away while the claim runs (a deadline, a reset), nothing stays leased.
    async fn claim_for_call(self: &Arc<Self>, request: ClaimRequest) -> Result<(Vec<LeasedJob>, Unsent), StoreError> {
        let (answer, answered) = oneshot::channel();
        let context = self.clone();
        tokio::spawn(async move {
            let claimed = context.store.claim(&request).await.map(|claimed| {
                // A claim without a stream has no owner for expired jobs.
                context.release.expired(claimed.expired, None);
                let leases = claimed.jobs.iter().map(|job| job.lease).collect();
                (claimed.jobs, Unsent::new(leases, context.release.clone()))
            });
            // If nobody takes it, it is dropped, now or a little later.
            let _ = answer.send(claimed);
        });
        answered.await.unwrap_or_else(|_| Err(StoreError::Unknown("the claim was cut short".into())))
    }
}
