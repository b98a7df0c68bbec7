//! Jobs for workers that poll with `PullJobs` calls instead of a stream. No broker owns such a lease: it lasts until its
//! deadline. Brokers write the time of the latest call per task type to a table. So each broker can tell a task type
//! without workers from one whose workers are between two calls, at any broker.

use std::{
    collections::{HashMap, hash_map::Entry},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use howdah_core::{
    error::Error,
    job::{Lease, LeasedJob, TaskTypeName, TypeId},
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedMutexGuard, oneshot},
    time::Instant,
};

use super::{JOB_OVERHEAD, SessionContext};
use crate::{
    memory::{AnswerMemory, Held},
    settle::Release,
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

/// `PullJobs` calls at this broker that wait for jobs, or whose end is not in the table yet. There is at most one entry
/// per task type.
#[derive(Clone, Default)]
pub struct Pulls {
    calls: Arc<Mutex<HashMap<TypeId, Calls>>>,
    late_wait_permit: Arc<tokio::sync::Mutex<()>>,
}

struct Calls {
    /// Number of `PullJobs` calls that wait for jobs.
    waiting: usize,
    /// Time of the latest start or end of a `PullJobs` call.
    last: Instant,
}

/// A `PullJobs` call in progress. Its end is recorded on drop.
pub struct Pulling {
    pulls: Pulls,
    types: Vec<TypeId>,
}

impl Pulls {
    /// Records the start of a `PullJobs` call for these task types.
    pub fn begin(&self, types: &[TypeId]) -> Pulling {
        let (mut calls, now) = (self.calls.lock(), Instant::now());
        for type_id in types {
            let calls = calls.entry(*type_id).or_insert(Calls { waiting: 0, last: now });
            calls.waiting += 1;
            calls.last = now;
        }
        Pulling { pulls: self.clone(), types: types.to_vec() }
    }

    /// Takes the permit to wait for a slow store longer than the caller of `PullJobs` asked for. One call has it at a
    /// time; returns `None` to the others.
    pub fn late_wait_permit(&self) -> Option<OwnedMutexGuard<()>> {
        self.late_wait_permit.clone().try_lock_owned().ok()
    }

    /// Returns whether a `PullJobs` call at this broker waits for jobs of this type.
    pub(crate) fn is_waiting(&self, type_id: TypeId) -> bool {
        self.calls.lock().get(&type_id).is_some_and(|calls| calls.waiting > 0)
    }

    /// Returns the time of the latest `PullJobs` call that is not in the table yet.
    pub(crate) fn last(&self, type_id: TypeId) -> Option<Instant> {
        self.calls.lock().get(&type_id).map(|calls| calls.last)
    }

    /// Returns the task types to write to the table, with the times of their latest `PullJobs` calls.
    pub(crate) fn unwritten(&self) -> Vec<(TypeId, Instant)> {
        let now = Instant::now();
        let last = |calls: &Calls| if calls.waiting > 0 { now } else { calls.last };
        self.calls.lock().iter().map(|(type_id, calls)| (*type_id, last(calls))).collect()
    }

    /// Removes entries that were written to the table, unless a later call has come.
    pub(crate) fn written(&self, types: &[(TypeId, Instant)]) {
        let mut calls = self.calls.lock();
        for (type_id, last) in types {
            if let Entry::Occupied(entry) = calls.entry(*type_id)
                && entry.get().waiting == 0
                && entry.get().last <= *last
            {
                entry.remove();
            }
        }
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        let (mut calls, now) = (self.pulls.calls.lock(), Instant::now());
        for type_id in &self.types {
            if let Some(calls) = calls.get_mut(type_id) {
                calls.waiting -= 1;
                calls.last = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_kept_until_its_end_has_been_written_to_the_table() {
        let pulls = Pulls::default();
        let types = |pulls: &Pulls| pulls.unwritten().iter().map(|(type_id, _)| *type_id).collect::<Vec<_>>();
        let call = pulls.begin(&[1]);
        assert!(pulls.is_waiting(1) && !pulls.is_waiting(2));
        pulls.written(&pulls.unwritten());
        assert_eq!(types(&pulls), [1], "it still waits");
        let before = pulls.unwritten();
        drop(call);
        pulls.written(&before);
        assert_eq!((types(&pulls), pulls.is_waiting(1)), (vec![1], false), "it has ended since");
        pulls.written(&pulls.unwritten());
        assert!(types(&pulls).is_empty() && pulls.last(1).is_none());
    }
}
