//! Maintenance task: updates the ranks of unstarted jobs after the `priority_step` of their task type has changed, in
//! small transactions. Each job stores the step from which its rank was computed, so any broker can see the remaining
//! work. All brokers do the work without waiting for each other.

use std::{sync::Arc, time::Duration};

use howdah_core::job::{JobState, PagePosition, Ready, TypeId};

use super::{Context, repeat};
use crate::store::StoreError;

/// Maximum number of jobs in a statement.
const BATCH: i32 = 1_000;
/// Time after a change of `priority_step` within which all statements that use the old step have ended. The last pass
/// over the jobs starts then.
const UNDER_WAY: Duration = Duration::from_secs(45);
/// Time after a change of `priority_step` within which every broker has read the new step. A pass after that time finds
/// the jobs that were enqueued with the old step.
const READ: Duration = Duration::from_secs(2);
/// Pause before a scan step is repeated because it found locked jobs.
const HELD_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of attempts of one scan step if it finds locked jobs. The next pass then handles them.
const HELD_TRIES: u32 = 5;

/// States in which the rank of a job matters. The pass visits them in the order in which jobs move through them, so
/// that it misses no job.
const STATES: [JobState; 3] = [JobState::Scheduled, JobState::Waiting, JobState::Ready];

pub(super) async fn run(context: Arc<Context>) {
    // Starts at once, because a `priority_step` may have changed before this broker started.
    repeat(&context, &context.rerank_now, "applying a new priority_step", || run_once(&context)).await;
}

/// Makes a pass over the jobs of every task type whose `priority_step` has changed. Returns the time until the next
/// pass, if one is needed.
pub(super) async fn run_once(context: &Context) -> Result<Option<Duration>, StoreError> {
    let under_way = UNDER_WAY.as_millis() as i64;
    let mut next: Option<Duration> = None;
    for type_id in context.registry.step_changed() {
        let Some(final_in_ms) = context.store.rerank_due(type_id, under_way).await? else {
            context.registry.step_followed(type_id);
            continue;
        };
        let missed = walk(context, type_id).await?;
        let wait = match (missed, final_in_ms) {
            (0, ms) if ms <= 0 => {
                context.store.rerank_done(type_id, under_way).await?;
                // If `priority_step` has changed again meanwhile, `rerank_due` returns the task type once more in a
                // second.
                Duration::from_secs(1)
            }
            (0, ms) => {
                let wait = Duration::from_millis(ms as u64 + 1);
                let between = wait.saturating_sub(UNDER_WAY.saturating_sub(READ));
                if between.is_zero() { wait } else { between }
            }
            _ => Duration::from_secs(1),
        };
        next = Some(next.map_or(wait, |n| n.min(wait)));
    }
    Ok(next)
}

/// Makes one pass over the jobs of a task type. Returns the number of locked jobs whose ranks are unchanged.
async fn walk(context: &Context, type_id: TypeId) -> Result<i64, StoreError> {
    let mut missed = 0;
    for state in STATES {
        let mut from = Some(PagePosition::first(state));
        while let Some(position) = from {
            let (left, next) = step(context, type_id, position).await?;
            missed += left;
            from = next;
        }
    }
    Ok(missed)
}

/// Makes one bounded scan step of a pass. Returns the number of skipped locked jobs, and the position of the next step.
async fn step(
    context: &Context,
    type_id: TypeId,
    from: PagePosition,
) -> Result<(i64, Option<PagePosition>), StoreError> {
    for last_try in (0..HELD_TRIES).rev().map(|left| left == 0) {
        let step = context.store.rerank(type_id, from, BATCH).await?;
        if let Some(lowest_rank) = step.lowest_rank.filter(|_| from.state == JobState::Ready) {
            announce(context, type_id, lowest_rank);
        }
        if step.missed == 0 || last_try {
            return Ok((step.missed, step.next));
        }
        tokio::time::sleep(HELD_PAUSE).await;
    }
    Ok((0, None))
}

/// Announces changed jobs to all brokers. A broker claims from the lowest known rank, and the new ranks may be lower.
pub(crate) fn announce(context: &Context, type_id: TypeId, lowest_rank: i64) {
    let ready = Ready { type_id, lowest_rank, jobs: 1 };
    context.dispatch.ready_everywhere(&[ready]);
}
