//! The running handlers, and the jobs that wait for a slot.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::job::Job;

/// Maximum time that a job waits although its task type has a free slot, because other types use all slots of the worker. Then
/// the job is released, because another worker may be idle.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after the last such release for which the windows are exact.
const EXACT_TIME: Duration = Duration::from_secs(30);

/// The slots of the worker, and of each task type.
///
/// The window of a type may be as large as all slots. Jobs that find no free slot wait, which saves messages while handlers are
/// short. After a job has waited too long, the windows are exact for a while: they have only the free slots.
#[derive(Debug)]
pub(crate) struct Slots {
    types: Vec<Slot>,
    /// Maximum number of running handlers of all task types.
    total: usize,
    running: usize,
    /// Number of jobs in all queues.
    queued: usize,
    /// End of the time in which the windows are exact.
    exact_until: Option<Instant>,
}

#[derive(Debug)]
struct Slot {
    limit: usize,
    running: usize,
    /// Jobs with the times of their arrival.
    queue: VecDeque<(Instant, Job)>,
}

impl Slots {
    pub(crate) fn new(limits: impl Iterator<Item = usize>, total: usize) -> Self {
        let slot = |limit| Slot { limit, running: 0, queue: VecDeque::new() };
        Self { types: limits.map(slot).collect(), total, running: 0, queued: 0, exact_until: None }
    }

    /// Number of handlers that may run at once. The addition saturates, because the sum of arbitrary settings could overflow.
    pub(crate) fn limit(&self) -> usize {
        self.types.iter().fold(0, |sum: usize, slot| sum.saturating_add(slot.limit)).min(self.total)
    }

    /// Whether the windows have only the jobs that the worker holds and the free slots.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact_until.is_some_and(|until| Instant::now() < until)
    }

    /// Number of jobs that may be received until all slots are used.
    pub(crate) fn free(&self) -> usize {
        self.total.saturating_sub(self.running + self.queued)
    }

    /// Queues a job until it gets a slot from [`next`](Self::next).
    pub(crate) fn add(&mut self, task_type: usize, job: Job) {
        self.types[task_type].queue.push_back((Instant::now(), job));
        self.queued += 1;
    }

    /// Frees a slot.
    pub(crate) fn leave(&mut self, task_type: usize) {
        let slot = &mut self.types[task_type];
        slot.running = slot.running.saturating_sub(1);
        self.running = self.running.saturating_sub(1);
    }

    /// Takes a free slot for the queued job that has waited longest. Returns its task type and the job.
    pub(crate) fn next(&mut self) -> Option<(usize, Job)> {
        if self.queued == 0 || self.running >= self.total {
            return None;
        }
        let open = self.types.iter_mut().enumerate().filter(|(_, slot)| slot.running < slot.limit);
        let waiting = open.filter_map(|(task_type, slot)| Some((slot.queue.front()?.0, task_type, slot)));
        let (_, task_type, slot) = waiting.min_by_key(|(since, ..)| *since)?;
        let (_, job) = slot.queue.pop_front()?;
        slot.running += 1;
        self.running += 1;
        self.queued -= 1;
        Some((task_type, job))
    }

    /// Changes the concurrency of a task type. Takes its queued jobs if it is 0.
    pub(crate) fn resize(&mut self, task_type: usize, limit: usize) -> Vec<Job> {
        let slot = &mut self.types[task_type];
        slot.limit = limit;
        let paused = if limit == 0 { std::mem::take(&mut slot.queue) } else { VecDeque::new() };
        self.queued -= paused.len();
        paused.into_iter().map(|(_, job)| job).collect()
    }

    /// Whether the worker has paused the task type.
    pub(crate) fn is_paused(&self, task_type: usize) -> bool {
        self.types[task_type].limit == 0
    }

    /// Whether any job waits for a slot.
    pub(crate) fn has_queue(&self) -> bool {
        self.queued > 0
    }

    /// Time at which the next job has waited too long, or the windows are no longer exact.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let open = self.types.iter().filter(|slot| self.queued > 0 && slot.running < slot.limit);
        let waiting = open.filter_map(|slot| Some(slot.queue.front()?.0 + SLOT_TIMEOUT));
        waiting.chain(self.exact_until).min()
    }

    /// Takes the jobs that have waited too long though their task type has a free slot.
    pub(crate) fn take_timed_out(&mut self, now: Instant) -> Vec<Job> {
        self.exact_until = self.exact_until.filter(|until| now < *until);
        let mut jobs = Vec::new();
        for slot in self.types.iter_mut().filter(|slot| slot.running < slot.limit) {
            let timed_out = slot.queue.iter().take_while(|(since, _)| *since + SLOT_TIMEOUT <= now).count();
            jobs.extend(slot.queue.drain(..timed_out).map(|(_, job)| job));
            self.queued -= timed_out;
        }
        if !jobs.is_empty() {
            self.exact_until = Some(now + EXACT_TIME);
        }
        jobs
    }

    /// Takes all queued jobs.
    pub(crate) fn take_queues(&mut self) -> Vec<Job> {
        self.queued = 0;
        let queues = self.types.iter_mut().map(|slot| &mut slot.queue);
        queues.flat_map(|queue| queue.drain(..).map(|(_, job)| job)).collect()
    }
}
