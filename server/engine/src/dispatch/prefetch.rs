//! Prefetch: claims jobs beyond the workers' free capacity. Otherwise capacity that a worker frees would stay unused
//! during a claim, which takes a statement and a commit. While more jobs are ready than fit, a claim takes additional
//! jobs: as many as the workers finish during three claims. They wait in a buffer for the first worker with free
//! capacity. Workers with slow handlers free no capacity during a claim, so nothing is prefetched for them.
//!
//! The number of prefetched jobs comes from average rates, not from the jobs that finish during one claim. Handlers
//! that got their jobs from one claim often end together, before the next claim begins. Then a count during that claim
//! would find none.

use std::time::{Duration, Instant};

use howdah_core::job::{LeasedJob, TypeId};

use super::{state::DispatchState, type_queue::TypeQueue};

/// Maximum number of prefetched jobs of a task type.
const MOST: u64 = 512;
/// Time after which a prefetched job that no worker has taken is released.
pub(super) const PREFETCHED_FOR: Duration = Duration::from_millis(100);

/// Lower bound of the time between two claims, in seconds, when rates are computed. Avoids a division by zero.
const SHORTEST: f64 = 1e-6;

/// Prefetch statistics of a task type.
#[derive(Default)]
pub(super) struct Prefetch {
    // Start of the last claim.
    began: Option<Instant>,
    // Number of jobs that workers have finished since the last claim began.
    finished: u32,
    // Average number of jobs that workers finish per second.
    per_second: f64,
    // Average duration of a claim in seconds.
    claim_takes: f64,
    // True if the last claim left ready jobs. Otherwise nothing is prefetched, so that brokers with free workers find
    // jobs, too.
    has_more: bool,
    /// True if the last claim requested more jobs than the windows of workers had room for, to prefetch them.
    pub(super) took_more: bool,
}

impl Prefetch {
    /// Records that workers have finished this many jobs.
    pub(super) fn finished(&mut self, jobs: u32) {
        self.finished += jobs;
    }

    pub(super) fn claim_begins(&mut self, takes_more: bool, now: Instant) {
        if let Some(began) = self.began.replace(now) {
            let seconds = now.duration_since(began).as_secs_f64().max(SHORTEST);
            self.per_second = f64::midpoint(self.per_second, f64::from(self.finished) / seconds);
        }
        self.finished = 0;
        self.took_more = takes_more;
    }

    pub(super) fn claim_ends(&mut self, has_more: bool, now: Instant) {
        if let Some(began) = self.began {
            self.claim_takes = f64::midpoint(self.claim_takes, now.duration_since(began).as_secs_f64());
        }
        self.has_more = has_more;
    }

    /// Stops prefetching, and forgets the statistics. Prefetching starts again when later claims show that it helps.
    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    /// Returns how many jobs the buffer should hold after a claim. It is at most the number of jobs that workers take
    /// in half of `PREFETCHED_FOR`.
    fn jobs(&self) -> u64 {
        let during_claim = (self.per_second * self.claim_takes).round() as u64;
        let in_time = (self.per_second * PREFETCHED_FOR.as_secs_f64() / 2.0).round() as u64;
        if self.has_more { (during_claim * 3).min(in_time).min(MOST) } else { 0 }
    }
}

impl TypeQueue {
    /// Returns the number of jobs to prefetch with the next claim. It is 0 until workers have taken a third of the
    /// buffered jobs, so that not every claim prefetches. The other two thirds suffice for two claims.
    pub(super) fn wanted_to_prefetch(&self) -> u64 {
        // Nothing is prefetched for windows that other stores may fill as well.
        let most = if self.has_shared_windows() { 0 } else { self.prefetch.jobs() };
        let buffered = self.buffer.len() as u64;
        if buffered * 3 > most * 2 { 0 } else { most - buffered }
    }

    /// Takes the prefetched jobs from the buffer, and stops prefetching.
    pub(super) fn take_prefetched(&mut self) -> Vec<LeasedJob> {
        self.prefetch.stop();
        let (prefetch, others) = self.buffer.drain(..).partition::<Vec<_>, _>(|buffered| buffered.is_prefetched);
        self.buffer.extend(others);
        prefetch.into_iter().map(|buffered| buffered.job).collect()
    }
}

impl DispatchState {
    /// Stops prefetching jobs of these task types.
    pub(super) fn stop_prefetch<'a>(&mut self, types: impl Iterator<Item = &'a TypeId>) {
        for type_id in types {
            if let Some(queue) = self.types.get_mut(type_id) {
                queue.prefetch.stop();
            }
        }
    }
}
