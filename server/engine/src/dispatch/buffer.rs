//! Buffer of leased jobs that are not assigned to a session: prefetched jobs, and jobs that do not fit at the moment.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use howdah_core::job::{LeasedJob, Ready, TypeId};

use super::{
    UNSENT_AFTER, prefetch,
    state::{Deliveries, DispatchState},
    type_queue::{Assigned, TypeQueue},
};

/// Leased jobs that were buffered for too long and are to be released.
#[derive(Default)]
pub(super) struct Stale {
    pub(super) jobs: Vec<LeasedJob>,
    /// Task types whose prefetched jobs are among `jobs`.
    pub(super) returning: Vec<Ready>,
}

/// A leased job that waits in the buffer for a session with capacity.
pub(super) struct BufferedJob {
    pub(super) job: LeasedJob,
    /// Time at which the job is released if no session has taken it.
    until: Instant,
    /// True if the job was prefetched while all windows were full. False if less capacity was left than the claim
    /// expected, or the job is too large.
    pub(super) is_prefetched: bool,
}

impl TypeQueue {
    /// Assigns the buffered jobs to sessions, then `jobs`. Buffers the jobs that do not fit now.
    pub(super) fn assign_or_buffer(&mut self, jobs: VecDeque<LeasedJob>, assigned: &mut Assigned) {
        self.assign_buffered(assigned);
        let left = self.assign(jobs, assigned);
        let is_prefetched = self.prefetch.took_more && self.open.is_empty();
        let until = Instant::now() + if is_prefetched { prefetch::PREFETCHED_FOR } else { UNSENT_AFTER };
        self.buffer.extend(left.into_iter().map(|job| BufferedJob { job, until, is_prefetched }));
    }

    /// Assigns buffered jobs to sessions with free capacity.
    pub(super) fn assign_buffered(&mut self, assigned: &mut Assigned) {
        let mut too_large = VecDeque::new();
        // Takes only as many jobs as windows have free slots. Slots become free one by one, and going through a buffer
        // of hundreds of jobs for each would be slow.
        while !self.open.is_empty()
            && let Some(first) = self.buffer.front()
        {
            let (until, slots) = (first.until, self.room_jobs() as usize);
            let some = self.buffer.drain(..slots.min(self.buffer.len())).map(|buffered| buffered.job).collect();
            let left = self.assign(some, assigned);
            too_large.extend(left.into_iter().map(|job| BufferedJob { job, until, is_prefetched: false }));
        }
        too_large.append(&mut self.buffer);
        self.buffer = too_large;
    }
}

impl DispatchState {
    /// Returns whether the claim loop must wake up after a change of this task type: a claim is due, or buffered jobs
    /// have to be released later.
    pub(super) fn concerns_claims(&self, type_id: TypeId) -> bool {
        !self.claim_rotation.is_empty() || self.types.get(&type_id).is_some_and(|queue| !queue.buffer.is_empty())
    }

    /// Assigns jobs of direct enqueues, which were leased without a claim. Returns jobs of task types that have no
    /// workers at this broker any more.
    pub(super) fn assign(&mut self, jobs: Vec<LeasedJob>) -> (Deliveries, Vec<LeasedJob>) {
        let mut assigned = Assigned::new();
        let mut unassignable = Vec::new();
        for (type_id, jobs) in by_type(jobs) {
            match self.types.get_mut(&type_id) {
                Some(queue) if !self.closed => {
                    queue.assign_or_buffer(jobs, &mut assigned);
                    self.pass_right(type_id);
                    self.request_windows(type_id);
                }
                _ => unassignable.extend(jobs),
            }
        }
        (assigned.into_values().collect(), unassignable)
    }

    /// Assigns buffered jobs of all task types. Sessions may have capacity again without finishing a job, for example
    /// after a stalled worker reads its stream again.
    pub(super) fn assign_all_buffered(&mut self) -> Deliveries {
        let mut assigned = Deliveries::new();
        for (type_id, queue) in &mut self.types {
            if !queue.buffer.is_empty() && !queue.open.is_empty() && !self.paused.contains(type_id) {
                let mut of_type = Assigned::new();
                queue.assign_buffered(&mut of_type);
                assigned.extend(of_type.into_values());
            }
        }
        assigned
    }

    /// Takes the jobs that were buffered for too long, and returns the time of the next release. If one of them was
    /// prefetched, takes all prefetched jobs of its task type. The caller must pass `returning` to `returned` once the
    /// jobs are ready again.
    pub(super) fn take_stale(&mut self, now: Instant) -> (Stale, Option<Instant>) {
        let (mut stale, mut next) = (Stale::default(), None);
        let mut left = Vec::new();
        for (type_id, queue) in &mut self.types {
            while let Some(first) = queue.buffer.front() {
                if first.until > now {
                    next = Some(next.map_or(first.until, |n: Instant| n.min(first.until)));
                    break;
                }
                if let Some(BufferedJob { job, is_prefetched, .. }) = queue.buffer.pop_front() {
                    if is_prefetched {
                        // Takes all prefetched jobs, because those claimed later would otherwise overtake the released
                        // job.
                        let later = queue.take_prefetched();
                        let lowest_rank = later.iter().map(|job| job.rank).fold(job.rank, i64::min);
                        queue.returning += 1;
                        stale.returning.push(Ready { type_id: *type_id, lowest_rank, jobs: 0 });
                        stale.jobs.extend(later);
                    } else {
                        queue.skip_heavy(job.weight);
                    }
                    stale.jobs.push(job);
                    left.push(*type_id);
                }
            }
        }
        for type_id in left {
            self.pass_right(type_id);
            self.queue_claim(type_id);
        }
        (stale, next)
    }

    /// Records that released prefetched jobs are ready again, and allows claims of their task types.
    pub(super) fn returned(&mut self, returned: &[Ready]) {
        for ready in returned {
            if let Some(queue) = self.types.get_mut(&ready.type_id) {
                queue.returning = queue.returning.saturating_sub(1);
                queue.lower_floor(ready.lowest_rank);
            }
            self.pass_right(ready.type_id);
            self.queue_claim(ready.type_id);
        }
    }
}

/// Groups jobs by task type and keeps their order.
pub(super) fn by_type(jobs: Vec<LeasedJob>) -> HashMap<TypeId, VecDeque<LeasedJob>> {
    let mut by_type: HashMap<TypeId, VecDeque<LeasedJob>> = HashMap::new();
    for job in jobs {
        by_type.entry(job.type_id).or_default().push_back(job);
    }
    by_type
}
