//! Types whose backlog is bounded: how many of their jobs wait for a worker, as far as this broker can tell.
//!
//! It counts in the database when jobs of such a type come, at most once a second; in between it adds what it
//! has stored and takes away what it has claimed. What other brokers do meanwhile it learns with the next
//! count. Nothing is counted for other types, nor while nothing comes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    dispatch::Dispatch,
    error::Error,
    job::{TaskTypeName, TypeId, TypeSettings},
    store::{Store, StoreError},
};

/// Counts are not made more often than this.
const EVERY: Duration = Duration::from_secs(1);
/// Nor more often than takes a twentieth of the time.
const SHARE: u32 = 20;
/// The soonest that a caller is told to come back.
const SOONEST: Duration = Duration::from_millis(100);

/// How many jobs a request has of a type whose backlog is bounded.
pub(crate) struct Bounded {
    type_id: TypeId,
    name: TaskTypeName,
    most: i64,
    jobs: i64,
}

impl Bounded {
    /// Counts one job more, if its type is such a one.
    pub(super) fn count(all: &mut Vec<Self>, type_id: TypeId, name: &TaskTypeName, settings: &TypeSettings) {
        let Some(most) = settings.max_backlog else { return };
        match all.iter_mut().find(|b| b.type_id == type_id) {
            Some(bounded) => bounded.jobs += 1,
            None => all.push(Self { type_id, name: name.clone(), most, jobs: 1 }),
        }
    }
}

/// What is known of a type.
#[derive(Clone, Copy)]
struct Known {
    /// At the last count.
    counted: i64,
    /// The count went no further: there may be more.
    at_least: bool,
    /// Stored here since.
    stored: i64,
    /// Admitted here and not stored yet.
    on_their_way: i64,
    /// What `Dispatch::brought` said at the last count.
    brought: u64,
    /// No count before this.
    next: Option<Instant>,
}

impl Known {
    fn is_fresh(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| now < next)
    }

    /// The backlog now.
    fn estimate(&self, brought: u64) -> i64 {
        let claimed = if self.at_least { 0 } else { brought.saturating_sub(self.brought) as i64 };
        (self.counted + self.stored - claimed).max(0) + self.on_their_way
    }
}

/// Bounds backlogs.
pub(super) struct Backlogs {
    store: Store,
    dispatch: Arc<Dispatch>,
    // Bounded by the number of task types with the setting.
    known: Mutex<HashMap<TypeId, Known>>,
    // One count at a time.
    counting: tokio::sync::Mutex<()>,
    patience: Duration,
}

/// Room for the jobs of a request, for as long as it is on its way.
pub(super) struct Admitted {
    backlogs: Arc<Backlogs>,
    jobs: Vec<(TypeId, i64)>,
    waiting: bool,
}

impl Admitted {
    /// The jobs are stored, and wait for workers.
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
    pub(super) fn new(store: Store, dispatch: Arc<Dispatch>, patience: Duration) -> Self {
        Self { store, dispatch, known: Mutex::default(), counting: tokio::sync::Mutex::default(), patience }
    }

    /// Lets a request in, or says which type has no room.
    pub(super) async fn admit(self: &Arc<Self>, request: Vec<Bounded>) -> Result<Admitted, Error> {
        if let Some(Bounded { name, most, jobs, .. }) = request.iter().find(|b| b.jobs > b.most) {
            let problem = format!("has {jobs} of {name}, whose max_backlog is {most}: send fewer at once");
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
        // Those who wait for their turn while Postgres is away wait no longer than the first.
        let late = |_| Error::Unavailable(format!("the backlog could not be counted within {:?}", self.patience));
        tokio::time::timeout(self.patience, admitted).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    /// `None`: a count is due first.
    fn try_admit(self: &Arc<Self>, request: &[Bounded]) -> Option<Result<Admitted, Error>> {
        let now = Instant::now();
        // Not under our lock: the board has its own.
        let brought: Vec<u64> = request.iter().map(|b| self.dispatch.brought(b.type_id)).collect();
        let mut known = self.known.lock();
        for (bounded, brought) in request.iter().zip(brought) {
            let of_type = known.get(&bounded.type_id).filter(|known| known.is_fresh(now))?;
            let waiting = of_type.estimate(brought);
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

    /// Counts those types of which too little is known.
    async fn count(&self, request: &[Bounded]) -> Result<(), StoreError> {
        let begun = Instant::now();
        let due = |b: &&Bounded| !self.known.lock().get(&b.type_id).is_some_and(|known| known.is_fresh(begun));
        // One more than allowed is enough to know.
        let due: Vec<(TypeId, i64)> = request.iter().filter(due).map(|b| (b.type_id, b.most + 1)).collect();
        if due.is_empty() {
            return Ok(());
        }
        // What happens while it counts may be in the count or not. Rather too much than too little: what is
        // stored meanwhile is added, what is claimed is not taken away.
        let stored = |type_id| self.known.lock().get(&type_id).map_or(0, |known| known.stored);
        let before: Vec<i64> = due.iter().map(|(type_id, _)| stored(*type_id)).collect();
        let counts: HashMap<TypeId, i64> = self.store.backlogs(&due).await?.into_iter().collect();
        let brought: Vec<u64> = due.iter().map(|(type_id, _)| self.dispatch.brought(*type_id)).collect();
        let next = Some(Instant::now() + EVERY.max(begun.elapsed() * SHARE));
        let mut known = self.known.lock();
        for (((type_id, most), before), brought) in due.into_iter().zip(before).zip(brought) {
            let counted = counts.get(&type_id).copied().unwrap_or_default();
            let (stored, on_their_way) = known.get(&type_id).map_or((0, 0), |k| (k.stored - before, k.on_their_way));
            let at_least = counted >= most;
            known.insert(type_id, Known { counted, at_least, stored, on_their_way, brought, next });
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
