//! Counts jobs by type and state for the metrics. Counting reads the tables, so it is done less often the longer it
//! takes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Context, until_done};
use crate::{
    job::JobState,
    metrics::{ByType, TypeState},
    store::StoreError,
};

const EVERY: Duration = Duration::from_secs(15);
/// The most types with metrics of their own. Prometheus does not cope well with more.
pub(crate) const MOST_TYPES: i32 = 1_000;

pub(super) async fn always(context: Arc<Context>) {
    loop {
        let took = until_done(&context, "counting jobs", || async {
            let begun = Instant::now();
            run_once(&context).await.map(|()| begun.elapsed())
        })
        .await;
        tokio::time::sleep(EVERY.max(took * 50)).await;
    }
}

/// Counts the jobs.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    let types = context.store.list_task_types("", MOST_TYPES, None).await?;
    let workers = workers(context);
    for task_type in types {
        let live = [JobState::Ready, JobState::Leased, JobState::Scheduled, JobState::Waiting, JobState::Dead];
        for (state, count) in live.into_iter().zip(task_type.counts) {
            let labels = TypeState { task_type: task_type.name.clone(), state: state.name() };
            context.metrics.jobs.get_or_create(&labels).set(count);
        }
        let labels = ByType { task_type: task_type.name };
        let subscribed = workers.get(labels.task_type.as_str()).copied().unwrap_or_default();
        context.metrics.workers.get_or_create(&labels).set(subscribed as i64);
        let age = task_type.oldest_ready.map_or(0.0, |age| age.as_secs_f64());
        context.metrics.oldest_ready.get_or_create(&labels).set(age);
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
