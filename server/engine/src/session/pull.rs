//! Jobs for workers that poll with `PullJobs` calls instead of a stream. No broker owns such a lease: it lasts until
//! its deadline.

use std::{sync::Arc, time::Duration};

use howdah_core::{
    error::Error,
    job::{LeasedJob, TaskTypeName, TypeId},
};
use tokio::{sync::oneshot, time::Instant};

use super::{JOB_OVERHEAD, SessionContext, Unsent};
use crate::{
    memory::{AnswerMemory, Held},
    store::{ClaimRequest, StoreError, Want},
};

/// Maximum number of task types in one claim statement.
const CLAIM_TYPES: usize = 512;
/// Maximum bytes of jobs in an answer, not counting its last job.
pub const PULL_BYTES: u64 = 2 << 20;

impl SessionContext {
    /// Leases up to `max` ready jobs for the duration `lease`. Waits up to `wait` for the first job. Releases the jobs
    /// if the answer is not sent. `room` reserves memory for the jobs; `by` is the caller's principal.
    pub async fn pull(
        self: &Arc<Self>,
        types: Vec<TaskTypeName>,
        max: usize,
        lease: Duration,
        wait: Duration,
        (room, by): (AnswerMemory, &str),
    ) -> Result<(Vec<LeasedJob>, Unsent, Held), Error> {
        let ids = self.registry.resolve(&types, by).await?;
        let until = Instant::now() + wait;
        // Counts this call as a waiting call until the function returns or is cancelled.
        let _pulling = self.sessions.pulls.begin(&ids);
        // Registers for wake-ups before the first claim, so that no job is missed that becomes ready in between.
        let waiter = self.dispatch.wait_for(&ids);
        loop {
            if self.is_draining() {
                return Err(Error::Unavailable("the broker is stopping; call another one".into()));
            }
            // Reserves memory for each claim anew, because the call must not hold memory while it waits for jobs.
            let held = room.take(2 * (PULL_BYTES as usize + self.registry.cluster().job_bytes())).await?;
            let jobs = self.pull_once(&ids, max, lease).await?;
            if !jobs.0.is_empty() || Instant::now() >= until {
                return Ok((jobs.0, jobs.1, held));
            }
            drop(held);
            // Claims once more after the wait has timed out.
            let _ = tokio::time::timeout_at(until, waiter.notified()).await;
        }
    }

    /// Leases up to `max` of the jobs that are ready now.
    pub async fn pull_once(
        self: &Arc<Self>,
        types: &[TypeId],
        max: usize,
        lease: Duration,
    ) -> Result<(Vec<LeasedJob>, Unsent), Error> {
        let mut left = max;
        let mut jobs = Vec::new();
        let mut unsent = Unsent::new(Vec::new(), self.release.clone());
        let mut bytes = 0_u64;
        // The answer must fit into one message, regardless of the size of its last job.
        let message_bytes = self.config.limits.message_bytes as u64;
        let most_bytes = PULL_BYTES
            .min(message_bytes / 2)
            .min(message_bytes.saturating_sub(self.registry.cluster().job_bytes() as u64))
            .max(1);
        let largest = message_bytes.saturating_sub(JOB_OVERHEAD) as i64;
        let mut types = types.to_vec();
        types.retain(|&type_id| !self.dispatch.is_paused(type_id));
        // Starts with a random task type, so that the first type in the request does not always fill the answer.
        let first = rand::random::<u32>() as usize % types.len().max(1);
        types.rotate_left(first);
        for chunk in types.chunks(CLAIM_TYPES) {
            // Each task type gets an equal share of the jobs, at least one. The claim request bounds the total.
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

    /// Claims in a separate task. If the caller goes away meanwhile (deadline, reset), the leases are released.
    async fn claim_for_call(self: &Arc<Self>, request: ClaimRequest) -> Result<(Vec<LeasedJob>, Unsent), StoreError> {
        let (answer, answered) = oneshot::channel();
        let context = self.clone();
        tokio::spawn(async move {
            let claimed = context.store.claim(&request).await.map(|claimed| {
                // No broker owns the leases of a `PullJobs` call, so expired jobs among them are ended without an
                // owner.
                context.release.expired(claimed.expired, None);
                let leases = claimed.jobs.iter().map(|job| job.lease).collect();
                (claimed.jobs, Unsent::new(leases, context.release.clone()))
            });
            // If the caller has gone, the claimed jobs are dropped now or shortly after, which releases their leases.
            let _ = answer.send(claimed);
        });
        answered.await.unwrap_or_else(|_| Err(StoreError::Unknown("the claim task ended without an answer".into())))
    }
}
