//! Counts jobs by type and state for the metrics, and for the backlog of statistics. Counting reads the tables, so it is done less often the longer it
//! takes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{Context, in_turn};
use crate::{
    job::{JobState, TypeView},
    metrics::{ByType, TypeState},
    store::{Store, StoreError},
};

const EVERY: Duration = Duration::from_secs(15);
/// The most types with metrics of their own. Prometheus does not cope well with more.
pub(crate) const MOST_TYPES: i32 = 1_000;

/// Counting that takes no longer than this is done when somebody looks.
const CHEAP: Duration = Duration::from_millis(20);
/// For how long a count is good enough for whoever looks.
const FRESH: Duration = Duration::from_secs(1);
/// Whoever looks does not wait longer for a new count: a lock may hold it up, or Postgres be silent.
const LONGEST: Duration = Duration::from_secs(1);

/// Types with their numbers of jobs, as they were counted last.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// By name.
    pub(crate) types: Vec<TypeView>,
    /// When counting began; `None`: it was not done yet.
    begun: Option<Instant>,
    took: Duration,
    /// What counting costs: the shorter of the last two times that it took. One that was held up says nothing.
    cost: Duration,
}

impl Counted {
    /// How long ago it was.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.begun.map(|begun| begun.elapsed())
    }

    /// Whether types may be missing.
    pub(crate) fn is_cut(&self) -> bool {
        self.types.len() >= MOST_TYPES as usize
    }
}

/// The last count.
#[derive(Default)]
pub(crate) struct JobCounts {
    last: ArcSwap<Counted>,
    counting: Mutex<()>,
}

impl JobCounts {
    async fn count(&self, store: &Store) -> Result<Arc<Counted>, StoreError> {
        let begun = Instant::now();
        let types = store.list_task_types("", MOST_TYPES, None).await?;
        let took = begun.elapsed();
        let counted = Arc::new(Counted { types, begun: Some(begun), took, cost: took.min(self.last.load().took) });
        self.last.store(counted.clone());
        Ok(counted)
    }

    /// The last count; a new one, if that one is old and counting is cheap. However many look, one counts.
    pub(crate) async fn look(&self, store: &Store) -> Arc<Counted> {
        let last = self.last.load_full();
        if last.cost > CHEAP || last.age().is_some_and(|age| age < FRESH) {
            return last;
        }
        let Ok(_counting) = self.counting.try_lock() else { return last };
        if let Ok(counted) = timeout(LONGEST, self.count(store)).await {
            return counted.unwrap_or(last);
        }
        // Nobody else waits for one, until the task that counts has counted.
        let held_up = Counted { types: last.types.clone(), took: LONGEST, cost: LONGEST, ..*last };
        self.last.compare_and_swap(&last, Arc::new(held_up));
        last
    }
}

pub(super) async fn always(context: Arc<Context>) {
    let mut before = Duration::ZERO;
    loop {
        let took = in_turn(&context, "counting jobs", || async {
            let begun = Instant::now();
            run_once(&context).await.map(|()| begun.elapsed())
        })
        .await;
        // As above: one that was held up for seconds does not stop the figures for minutes.
        tokio::time::sleep(EVERY.max(took.min(before) * 50)).await;
        before = took;
    }
}

/// Counts the jobs.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let counted = context.job_counts.count(&context.store).await?;
    context.store.sample_backlog(&counted.types).await?;
    let workers = workers(context);
    for task_type in counted.types.iter().cloned() {
        for (state, count) in JobState::COUNTED.into_iter().zip(task_type.counts) {
            let labels = TypeState { task_type: task_type.name.clone(), state: state.name() };
            context.metrics.jobs.get_or_create(&labels).set(count);
        }
        let labels = ByType { task_type: task_type.name };
        let subscribed = workers.get(labels.task_type.as_str()).copied().unwrap_or_default();
        context.metrics.workers.get_or_create(&labels).set(subscribed as i64);
        let age = task_type.oldest_ready.map_or(0.0, |age| age.as_secs_f64());
        context.metrics.oldest_ready.get_or_create(&labels).set(age);
        // Only of types that are pulled at all.
        if let Some(last) = task_type.last_pull.and_then(|last| last.duration_since(UNIX_EPOCH).ok()) {
            context.metrics.last_pull.get_or_create(&labels).set(last.as_secs() as i64);
        }
    }
    let sessions = context.sessions.all();
    context.metrics.leases.set(sessions.iter().map(|s| s.held_count() as i64).sum());
    context.metrics.sessions.set(context.sessions.open() as i64);
    Ok(())
}

/// The workers of each type at this broker.
fn workers(context: &Context) -> HashMap<String, usize> {
    let name = |(type_id, workers)| Some((context.registry.name(type_id)?.to_string(), workers));
    context.dispatch.workers().into_iter().filter_map(name).collect()
}
