//! Maintenance task: counts jobs by task type and state, for the metrics and the backlog statistics. Counting reads
//! whole tables, so slow counts are made less often.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use howdah_core::job::{JobState, TypeView};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{Context, run_serialized};
use crate::{
    metrics::{ByType, TypeState},
    store::{Store, StoreError},
};

const EVERY: Duration = Duration::from_secs(15);
/// Maximum number of task types with their own metrics, because Prometheus handles more label values badly.
pub const MOST_TYPES: i32 = 1_000;

/// Maximum cost of counting for which a page or call triggers a new count. If counting is slower, the last count is
/// returned.
const CHEAP: Duration = Duration::from_millis(400);
/// Minimum age of the last count before a new one is made.
const FRESH: Duration = Duration::from_secs(1);
/// Pages and calls cause counts during at most a fifth of the time. So a count of a million jobs, which takes 150 to 350 ms, is
/// at most 2 s old.
const SHARE: u32 = 5;
/// Maximum time that a caller waits for a new count, which a lock or an unresponsive Postgres may block.
const LONGEST: Duration = Duration::from_secs(1);

/// Numbers of jobs by task type, from the last count.
#[derive(Debug, Default)]
pub struct Counted {
    /// Task types with their numbers of jobs, in the order of names.
    pub types: Vec<TypeView>,
    /// Start time of the count; `None` before the first count.
    begun: Option<Instant>,
    took: Duration,
    /// Duration that counts as the cost of counting: the shorter of the last two, so that one blocked count does not
    /// distort it.
    cost: Duration,
}

impl Counted {
    /// Returns the age of the count.
    pub fn age(&self) -> Option<Duration> {
        self.begun.map(|begun| begun.elapsed())
    }

    /// Returns whether task types may be missing, because the count is limited to `MOST_TYPES`.
    pub fn is_cut(&self) -> bool {
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

    /// Returns the last count. Makes a new one first if the last one is old and counting is cheap; concurrent callers
    /// cause only one.
    pub(crate) async fn look(&self, store: &Store) -> Arc<Counted> {
        let last = self.last.load_full();
        if !is_due(last.cost, last.age()) {
            return last;
        }
        let Ok(_counting) = self.counting.try_lock() else { return last };
        if let Ok(counted) = timeout(LONGEST, self.count(store)).await {
            return counted.unwrap_or(last);
        }
        // A lock or an unresponsive Postgres blocks the count. Later callers get the last count at once, until the
        // maintenance task has counted again.
        let held_up = Counted { types: last.types.clone(), took: LONGEST, cost: LONGEST, ..*last };
        self.last.compare_and_swap(&last, Arc::new(held_up));
        last
    }
}

/// Whether a page or call makes a new count, if the last one has this cost and age (`None`: there is no count yet).
fn is_due(cost: Duration, age: Option<Duration>) -> bool {
    cost <= CHEAP && age.is_none_or(|age| age >= FRESH.max(cost * SHARE))
}

pub(super) async fn run(context: Arc<Context>) {
    let mut before = Duration::ZERO;
    loop {
        let took = run_serialized(&context, "counting jobs", || async {
            let begun = Instant::now();
            run_once(&context).await.map(|()| begun.elapsed())
        })
        .await;
        // The pause depends on the shorter of the last two durations. One blocked count thus does not stop the metrics
        // for minutes.
        tokio::time::sleep(EVERY.max(took.min(before) * 50)).await;
        before = took;
    }
}

/// Counts the jobs and sets the metrics.
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
        if task_type.settings.limits.brake_failures.is_some() || task_type.braked.is_some() {
            context.metrics.braked.get_or_create(&labels).set(i64::from(task_type.braked.is_some()));
        }
        // The metric `last_pull` exists only for task types whose jobs clients pull without a stream.
        if let Some(last) = task_type.last_pull.and_then(|last| last.duration_since(UNIX_EPOCH).ok()) {
            context.metrics.last_pull.get_or_create(&labels).set(last.as_secs() as i64);
        }
    }
    let sessions = context.sessions.all();
    context.metrics.leases.set(sessions.iter().map(|s| s.held_count() as i64).sum());
    context.metrics.sessions.set(context.sessions.open() as i64);
    Ok(())
}

/// Returns the number of workers of this broker by task type.
fn workers(context: &Context) -> HashMap<String, usize> {
    let name = |(type_id, workers)| Some((context.registry.name(type_id)?.to_string(), workers));
    context.dispatch.workers().into_iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_made_every_second_and_less_often_when_counting_takes_long() {
        let due = |cost, age| is_due(Duration::from_millis(cost), Some(Duration::from_millis(age)));
        assert!(is_due(Duration::ZERO, None), "the first count");
        for (cost, age) in [(1, 1_000), (200, 1_000), (300, 1_500), (400, 2_000)] {
            assert!(due(cost, age) && !due(cost, age - 1), "{cost} ms");
        }
        assert!(!due(401, 60_000), "left to the maintenance task");
    }
}
