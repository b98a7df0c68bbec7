//! The running handlers of a task type, and the jobs that wait for a slot.

use std::collections::VecDeque;

use super::job::Job;

/// The slots of all task types.
///
/// By default the window equals the concurrency. Jobs are then queued only while handlers of cancelled jobs still use slots.
#[derive(Debug)]
pub(crate) struct Slots {
    types: Vec<Slot>,
    /// Number of jobs in all queues.
    queued: usize,
}

#[derive(Debug)]
struct Slot {
    limit: usize,
    running: usize,
    queue: VecDeque<Job>,
}

impl Slots {
    pub(crate) fn new(limits: impl Iterator<Item = usize>) -> Self {
        let slot = |limit| Slot { limit, running: 0, queue: VecDeque::new() };
        Self { types: limits.map(slot).collect(), queued: 0 }
    }

    /// Number of slots of all task types. The addition saturates, because the sum of arbitrary settings could overflow.
    pub(crate) fn limit(&self) -> usize {
        self.types.iter().fold(0, |sum, slot| sum.saturating_add(slot.limit))
    }

    /// Takes a slot for the job and returns the job to run. If no slot is free, queues the job and returns `None`.
    pub(crate) fn enter(&mut self, task_type: usize, job: Job) -> Option<Job> {
        let slot = &mut self.types[task_type];
        if slot.running < slot.limit {
            slot.running += 1;
            return Some(job);
        }
        slot.queue.push_back(job);
        self.queued += 1;
        None
    }

    /// Frees a slot.
    pub(crate) fn leave(&mut self, task_type: usize) {
        let slot = &mut self.types[task_type];
        slot.running = slot.running.saturating_sub(1);
    }

    /// Takes a free slot for the next queued job, and returns the job.
    pub(crate) fn next(&mut self, task_type: usize) -> Option<Job> {
        let slot = &mut self.types[task_type];
        if slot.running >= slot.limit {
            return None;
        }
        let job = slot.queue.pop_front()?;
        slot.running += 1;
        self.queued -= 1;
        Some(job)
    }

    pub(crate) fn resize(&mut self, task_type: usize, limit: usize) {
        self.types[task_type].limit = limit;
    }

    /// Whether any job waits for a slot.
    pub(crate) fn has_queue(&self) -> bool {
        self.queued > 0
    }

    /// Takes all queued jobs.
    pub(crate) fn take_queues(&mut self) -> Vec<Job> {
        self.queued = 0;
        let queues = self.types.iter_mut().map(|slot| &mut slot.queue);
        queues.flat_map(|queue| queue.drain(..)).collect()
    }
}
