//! Claims ahead of the workers' capacity. A place that a worker has freed would stay empty for as long as a claim takes: a
//! statement and its commit. So while more jobs are ready than the workers have places for, a claim brings some more: as
//! many as the workers finish during three claims. They are kept in the hand, and the first worker with a free place gets
//! them. Workers with slow handlers free no place during a claim, so nothing is claimed ahead for them.
//!
//! What counts is how many jobs the workers finish in the time that a claim takes, not while one is under way: handlers that got their
//! jobs from one claim end together, and then the next claim begins, during which none of them ends.

use std::time::{Duration, Instant};

use super::{state::DispatchState, type_queue::TypeQueue};
use crate::job::{LeasedJob, TypeId};

/// The most jobs of a type that are claimed ahead.
const MOST: u64 = 512;
/// Jobs that were claimed ahead and that no worker took within this time are released.
pub(super) const KEPT: Duration = Duration::from_millis(100);

/// The least time between two claims, in seconds.
const SHORTEST: f64 = 1e-6;

/// How far claims of a type go ahead.
#[derive(Default)]
pub(super) struct Ahead {
    // When the last claim began.
    began: Option<Instant>,
    // Jobs that workers have finished since then,
    finished: u32,
    // and in a second, on average.
    per_second: f64,
    // How long a claim takes, on average, in seconds.
    claim_takes: f64,
    // The last claim left ready jobs. So a worker elsewhere with a free place has jobs to claim, too.
    has_more: bool,
    /// The last claim asked for more jobs than there were places.
    pub(super) asked: bool,
}

impl Ahead {
    /// Workers have finished so many jobs.
    pub(super) fn finished(&mut self, jobs: u32) {
        self.finished += jobs;
    }

    pub(super) fn claim_begins(&mut self, asks: bool, now: Instant) {
        if let Some(began) = self.began.replace(now) {
            let seconds = now.duration_since(began).as_secs_f64().max(SHORTEST);
            self.per_second = f64::midpoint(self.per_second, f64::from(self.finished) / seconds);
        }
        self.finished = 0;
        self.asked = asks;
    }

    pub(super) fn claim_ends(&mut self, has_more: bool, now: Instant) {
        if let Some(began) = self.began {
            self.claim_takes = f64::midpoint(self.claim_takes, now.duration_since(began).as_secs_f64());
        }
        self.has_more = has_more;
    }

    /// Nothing is claimed ahead until claims show again that it pays.
    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    /// How many jobs to have in the hand after a claim. Where claims are slow, no more than the workers take well before the jobs would
    /// be released.
    fn jobs(&self) -> u64 {
        let during_claim = (self.per_second * self.claim_takes).round() as u64;
        let in_time = (self.per_second * KEPT.as_secs_f64() / 2.0).round() as u64;
        if self.has_more { (during_claim * 3).min(in_time).min(MOST) } else { 0 }
    }
}

impl TypeQueue {
    /// How many jobs to claim besides those that fit now. Nothing until a third of the hand is dealt, so that claims are few; what is
    /// left is enough for two claims.
    pub(super) fn wanted_ahead(&self) -> u64 {
        // A window that several engines deal to is not this one's alone.
        let most = if self.has_turns() { 0 } else { self.ahead.jobs() };
        let kept = self.hand.len() as u64;
        if kept * 3 > most * 2 { 0 } else { most - kept }
    }

    /// Takes the jobs that were claimed ahead from the hand.
    pub(super) fn take_ahead(&mut self) -> Vec<LeasedJob> {
        self.ahead.stop();
        let (ahead, others) = self.hand.drain(..).partition::<Vec<_>, _>(|kept| kept.is_ahead);
        self.hand.extend(others);
        ahead.into_iter().map(|kept| kept.job).collect()
    }
}

impl DispatchState {
    /// Nothing is claimed ahead of these types.
    pub(super) fn stop_ahead<'a>(&mut self, types: impl Iterator<Item = &'a TypeId>) {
        for type_id in types {
            if let Some(queue) = self.types.get_mut(type_id) {
                queue.ahead.stop();
            }
        }
    }
}
