//! Bounds the backlog of task types: estimates how many of their jobs wait for a worker.
//!
//! When jobs of a type with a bounded backlog arrive, the broker counts its waiting jobs in the database, at most once
//! a second. Between counts it adds the jobs that it has stored, and subtracts the jobs that it has claimed. Changes by
//! other brokers become visible at the next count. Nothing is counted for other types, or while no jobs arrive.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::{
    error::Error,
    job::{TaskTypeName, TypeId, TypeSettings},
};
use parking_lot::Mutex;

use crate::{
    dispatch::Dispatch,
    store::{Store, StoreError},
};

/// Minimum time between counts of a backlog in the database.
const EVERY: Duration = Duration::from_secs(1);
/// Minimum pause after a count, as a multiple of the count's duration. Counting takes at most about 1/20 of the time.
const SHARE: u32 = 20;
/// Minimum retry delay for a caller whose jobs exceed a bounded backlog.
const SOONEST: Duration = Duration::from_millis(100);

/// Number of jobs in a request of one task type whose backlog is bounded.
pub(crate) struct Bounded {
    type_id: TypeId,
    name: TaskTypeName,
    most: i64,
    jobs: i64,
}

impl Bounded {
    /// Adds one job, if the backlog of its task type is bounded.
    pub(super) fn count(all: &mut Vec<Self>, type_id: TypeId, name: &TaskTypeName, settings: &TypeSettings) {
        let Some(most) = settings.max_backlog else { return };
        match all.iter_mut().find(|b| b.type_id == type_id) {
            Some(bounded) => bounded.jobs += 1,
            None => all.push(Self { type_id, name: name.clone(), most, jobs: 1 }),
        }
    }
}

/// Backlog of a task type, as far as this broker knows.
#[derive(Clone, Copy)]
struct Known {
    /// Number of jobs that the last count found.
    counted: i64,
    /// True if the last count stopped at its bound, so that more jobs may wait.
    at_least: bool,
    /// Jobs stored by this broker since the last count.
    stored: i64,
    /// Jobs admitted by this broker and not stored yet.
    on_their_way: i64,
    /// `Dispatch::claimed_total` at the last count.
    claimed_total: u64,
    /// Earliest time of the next count.
    next: Option<Instant>,
}

impl Known {
    fn is_fresh(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| now < next)
    }

    /// Returns the estimated backlog now.
    fn estimate(&self, claimed_total: u64) -> i64 {
        let claimed = if self.at_least { 0 } else { claimed_total.saturating_sub(self.claimed_total) as i64 };
        (self.counted + self.stored - claimed).max(0) + self.on_their_way
    }
}

/// Bounds the backlogs of task types.
pub(super) struct Backlogs {
    store: Store,
    dispatch: Arc<Dispatch>,
    // Has at most one entry per task type that has the setting `max_backlog`.
    known: Mutex<HashMap<TypeId, Known>>,
    // Lets one request at a time count backlogs in the database.
    counting: tokio::sync::Mutex<()>,
    count_timeout: Duration,
}

/// Room in bounded backlogs that is reserved for the jobs of a request until the request is answered.
pub(super) struct Admitted {
    backlogs: Arc<Backlogs>,
    jobs: Vec<(TypeId, i64)>,
    waiting: bool,
}

impl Admitted {
    /// Records that the jobs are stored and wait for workers.
    pub(super) fn wait_for_workers(&mut self) {
        self.waiting = true;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut known = self.backlogs.known.lock();
        for (type_id, jobs) in &self.jobs {
            if let Some(known) = known.get_mut(type_id) {
                known.on_their_way -= jobs;
                known.stored += if self.waiting { *jobs } else { 0 };
            }
        }
    }
}

impl Backlogs {
    pub(super) fn new(store: Store, dispatch: Arc<Dispatch>, count_timeout: Duration) -> Self {
        Self { store, dispatch, known: Mutex::default(), counting: tokio::sync::Mutex::default(), count_timeout }
    }

    /// Admits a request, or returns an error that names the task type whose backlog is full.
    pub(super) async fn admit(self: &Arc<Self>, request: Vec<Bounded>) -> Result<Admitted, Error> {
        if let Some(Bounded { name, most, jobs, .. }) = request.iter().find(|b| b.jobs > b.most) {
            let problem = format!("has {jobs} jobs of {name}, whose max_backlog is {most}: send fewer jobs at once");
            return Err(Error::invalid("jobs", problem));
        }
        let admitted = async {
            loop {
                if let Some(decided) = self.try_admit(&request) {
                    return decided;
                }
                let _turn = self.counting.lock().await;
                self.count(&request).await?;
            }
        };
        // The timeout covers the wait for another request's count, so that no caller waits longer while Postgres is
        // unreachable.
        let late = |_| Error::Unavailable(format!("the backlog could not be counted within {:?}", self.count_timeout));
        tokio::time::timeout(self.count_timeout, admitted).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    /// Admits or refuses a request. Returns `None` if a backlog must be counted first.
    fn try_admit(self: &Arc<Self>, request: &[Bounded]) -> Option<Result<Admitted, Error>> {
        let now = Instant::now();
        // Reads the totals before `known` is locked, because `claimed_total` takes the lock of dispatch.
        let claimed_total: Vec<u64> = request.iter().map(|b| self.dispatch.claimed_total(b.type_id)).collect();
        let mut known = self.known.lock();
        for (bounded, claimed_total) in request.iter().zip(claimed_total) {
            let of_type = known.get(&bounded.type_id).filter(|known| known.is_fresh(now))?;
            let waiting = of_type.estimate(claimed_total);
            if waiting + bounded.jobs > bounded.most {
                let after = of_type.next.unwrap_or(now).saturating_duration_since(now);
                return Some(Err(full(bounded, waiting, of_type.at_least, after)));
            }
        }
        for bounded in request {
            if let Some(known) = known.get_mut(&bounded.type_id) {
                known.on_their_way += bounded.jobs;
            }
        }
        let jobs = request.iter().map(|b| (b.type_id, b.jobs)).collect();
        Some(Ok(Admitted { backlogs: self.clone(), jobs, waiting: false }))
    }

    /// Counts the task types whose count is out of date.
    async fn count(&self, request: &[Bounded]) -> Result<(), StoreError> {
        let begun = Instant::now();
        let due = |b: &&Bounded| !self.known.lock().get(&b.type_id).is_some_and(|known| known.is_fresh(begun));
        // Counting stops at one job more than the bound, which is enough to refuse a request.
        let due: Vec<(TypeId, i64)> = request.iter().filter(due).map(|b| (b.type_id, b.most + 1)).collect();
        if due.is_empty() {
            return Ok(());
        }
        // The count may or may not include changes that happen meanwhile. To avoid an estimate that is too low, jobs
        // stored meanwhile are added, and jobs claimed meanwhile are not subtracted.
        let stored = |type_id| self.known.lock().get(&type_id).map_or(0, |known| known.stored);
        let before: Vec<i64> = due.iter().map(|(type_id, _)| stored(*type_id)).collect();
        let counts: HashMap<TypeId, i64> = self.store.backlogs(&due).await?.into_iter().collect();
        let claimed_total: Vec<u64> = due.iter().map(|(type_id, _)| self.dispatch.claimed_total(*type_id)).collect();
        let next = Some(Instant::now() + EVERY.max(begun.elapsed() * SHARE));
        let mut known = self.known.lock();
        for (((type_id, most), before), claimed_total) in due.into_iter().zip(before).zip(claimed_total) {
            let counted = counts.get(&type_id).copied().unwrap_or_default();
            let (stored, on_their_way) = known.get(&type_id).map_or((0, 0), |k| (k.stored - before, k.on_their_way));
            let at_least = counted >= most;
            known.insert(type_id, Known { counted, at_least, stored, on_their_way, claimed_total, next });
        }
        Ok(())
    }
}

fn full(bounded: &Bounded, waiting: i64, at_least: bool, after: Duration) -> Error {
    let Bounded { name, most, jobs, .. } = bounded;
    let at_least = if at_least { "at least " } else { "" };
    Error::Exhausted {
        reason: "BACKLOG_FULL",
        message: format!(
            "{jobs} more jobs of {name} would exceed its max_backlog of {most}: {at_least}{waiting} wait already; \
             nothing was stored, try again later"
        ),
        retry_after: after.max(SOONEST),
    }
}
