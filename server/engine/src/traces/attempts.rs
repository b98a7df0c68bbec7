//! Attempts of sampled jobs that are in progress.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant, SystemTime},
};

use howdah_core::job::Lease;
use opentelemetry::trace::SpanId;
use parking_lot::Mutex;

use super::context::Creation;

/// Maximum number of sampled attempts in progress. No spans are made for further attempts.
pub const MOST_OPEN: usize = 100_000;
/// Interval between two searches for overdue attempts, whose end was not reported.
const LATE_PAUSE: Duration = Duration::from_mins(1);

/// An attempt of a sampled job, from which its span is made.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) job: i64,
    pub(super) token: i64,
    pub(super) task_type: String,
    pub(super) number: i16,
    pub(super) creation: Creation,
    pub(super) span_id: SpanId,
    /// Start time of the attempt, by the clock of the database.
    pub(super) started: SystemTime,
    pub(super) since: Instant,
    /// Time after which the attempt counts as ended, even if its end was not reported. `None` for attempts of a
    /// session.
    pub(super) until: Option<Instant>,
}

/// Error: the maximum number of attempts is in progress.
#[derive(Debug)]
pub(super) struct TooMany;

/// Sampled attempts in progress, by job id. A job has at most one.
#[derive(Default)]
pub(super) struct OpenAttempts {
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_job: HashMap<i64, Attempt>,
    searched: Option<Instant>,
}

impl OpenAttempts {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Adds an attempt. Returns the previous attempt of the same job, if its end was not reported.
    pub(super) fn insert(&self, attempt: Attempt) -> Result<Option<Attempt>, TooMany> {
        let mut state = self.state.lock();
        let is_full = state.by_job.len() >= MOST_OPEN;
        match state.by_job.entry(attempt.job) {
            Entry::Occupied(mut entry) => Ok(Some(entry.insert(attempt))),
            Entry::Vacant(_) if is_full => Err(TooMany),
            Entry::Vacant(entry) => {
                entry.insert(attempt);
                self.count.fetch_add(1, Ordering::Release);
                Ok(None)
            }
        }
    }

    /// Removes the attempts of these leases, and returns each with the value that came with its lease.
    pub(super) fn take<T>(&self, leases: impl Iterator<Item = (Lease, T)>) -> Vec<(Attempt, T)> {
        let mut state = self.state.lock();
        let mut taken = Vec::new();
        for (lease, of_it) in leases {
            if let Entry::Occupied(entry) = state.by_job.entry(lease.id)
                && entry.get().token == lease.token
            {
                taken.push((entry.remove(), of_it));
            }
        }
        self.count.fetch_sub(taken.len(), Ordering::Release);
        taken
    }

    /// Removes the attempts of these leases that began before this time.
    pub(super) fn take_older(&self, leases: impl Iterator<Item = Lease>, before: Instant) -> Vec<Attempt> {
        let mut state = self.state.lock();
        let mut taken = Vec::new();
        for lease in leases {
            if let Entry::Occupied(entry) = state.by_job.entry(lease.id)
                && entry.get().token == lease.token
                && entry.get().since < before
            {
                taken.push(entry.remove());
            }
        }
        self.count.fetch_sub(taken.len(), Ordering::Release);
        taken
    }

    /// Sets a later `until` for those attempts of these leases that have an `until`.
    pub(super) fn extend(&self, leases: impl Iterator<Item = (Lease, Instant)>) {
        let mut state = self.state.lock();
        for (lease, until) in leases {
            if let Some(attempt) = state.by_job.get_mut(&lease.id).filter(|attempt| attempt.token == lease.token) {
                attempt.until = attempt.until.map(|_| until);
            }
        }
    }

    /// Removes and returns the attempts whose `until` has passed without a report of their end. Searches at most once a
    /// minute.
    pub(super) fn take_late(&self) -> Vec<Attempt> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.searched.is_some_and(|last| now - last < LATE_PAUSE) {
            return Vec::new();
        }
        state.searched = Some(now);
        let late = state.by_job.extract_if(|_, attempt| attempt.until.is_some_and(|until| until < now));
        let late: Vec<Attempt> = late.map(|(_, attempt)| attempt).collect();
        self.count.fetch_sub(late.len(), Ordering::Release);
        late
    }

    /// Removes all attempts.
    pub(super) fn take_all(&self) -> Vec<Attempt> {
        let mut state = self.state.lock();
        self.count.store(0, Ordering::Release);
        state.by_job.drain().map(|(_, attempt)| attempt).collect()
    }
}
