//! When a task type's step was changed, the ranks of its waiting jobs follow: in small transactions, each of
//! which may be the last. Each job says with which step its rank was made, so whoever walks by later knows
//! what is left to do. Every broker walks; they do not wait for each other.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::{
    job::{JobState, Ready, TypeId},
    store::{StoreError, WalkPosition},
};

/// Jobs in a statement at most.
pub(crate) const BATCH: i32 = 1_000;
/// A statement that was under way when the step was changed, or that a broker sent which had not read the new
/// one yet, has ended after this. Then comes the last walk.
const UNDER_WAY: Duration = Duration::from_secs(45);
/// Every broker has read a new step after this: a walk in between, for what they enqueued by the old one.
const READ: Duration = Duration::from_secs(2);
/// Pause after jobs that others held.
pub(crate) const HELD_PAUSE: Duration = Duration::from_millis(20);
/// How often to try those before they are left to the next walk.
pub(crate) const HELD_TRIES: u32 = 5;

/// The states whose ranks matter, in the order in which jobs move on: none slips through behind the walk.
pub(crate) const STATES: [JobState; 3] = [JobState::Scheduled, JobState::Waiting, JobState::Ready];

pub(super) async fn always(context: Arc<Context>) {
    // What the broker has read at its start.
    let mut next = Some(Duration::ZERO);
    loop {
        let again = async {
            match next {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = context.rerank_now.notified() => {}
            () = again => {}
        }
        next = until_done("following a new priority_step", || run_once(&context)).await;
    }
}

/// Walks through every type that needs it; returns when to do it again.
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
                // If it was changed again, `rerank_due` says so.
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

/// One walk through the jobs of a type; how many it had to leave.
async fn walk(context: &Context, type_id: TypeId) -> Result<i64, StoreError> {
    let mut missed = 0;
    for state in STATES {
        let mut from = Some(start_of(state));
        while let Some(place) = from {
            let (_, left, next) = step(context, type_id, None, place).await?;
            missed += left;
            from = next;
        }
    }
    Ok(missed)
}

/// Where the walk through a state begins.
pub(crate) fn start_of(state: JobState) -> WalkPosition {
    WalkPosition { state, rank: i64::MIN, id: i64::MIN }
}

/// One step of a walk: how many jobs were changed, how many are left because somebody holds them, and where to
/// go on.
pub(crate) async fn step(
    context: &Context,
    type_id: TypeId,
    priority: Option<i16>,
    from: WalkPosition,
) -> Result<(i64, i64, Option<WalkPosition>), StoreError> {
    let mut moved = 0;
    for last_try in (0..HELD_TRIES).rev().map(|left| left == 0) {
        let step = context.store.rerank(type_id, priority, from, BATCH).await?;
        moved += step.moved;
        if let Some(lowest_rank) = step.lowest_rank.filter(|_| from.state == JobState::Ready) {
            announce(context, type_id, lowest_rank);
        }
        if step.missed == 0 || last_try {
            return Ok((moved, step.missed, step.next));
        }
        tokio::time::sleep(HELD_PAUSE).await;
    }
    Ok((moved, 0, None))
}

/// Jobs may be below the rank from which brokers claim: all of them must know.
pub(crate) fn announce(context: &Context, type_id: TypeId, lowest_rank: i64) {
    let ready = Ready { type_id, lowest_rank, jobs: 1 };
    context.dispatch.ready_everywhere(&[ready]);
}
