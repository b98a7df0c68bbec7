//! When the priority step of a task type was changed, its waiting jobs get new ranks, in small transactions. Each job
//! stores the step that its rank was computed with, so any broker can see what is left to do. Every broker does the
//! walk; they do not wait for each other.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::{
    job::{JobState, Ready, TypeId},
    store::{Actor, StoreError, WalkPosition},
};

/// The most jobs in a statement.
pub(crate) const BATCH: i32 = 1_000;
/// After this time, statements that were running when the step was changed, or were sent by a broker that did not know
/// the new one, have ended. Then the last walk starts.
const UNDER_WAY: Duration = Duration::from_secs(45);
/// After this time, every broker has read a new step. Then a walk is done for jobs enqueued with the old one.
const READ: Duration = Duration::from_secs(2);
/// How long to pause after jobs that others had locked.
pub(crate) const HELD_PAUSE: Duration = Duration::from_millis(20);
/// How often to try locked jobs before they are left to the next walk.
pub(crate) const HELD_TRIES: u32 = 5;

/// The states whose ranks matter, in the order in which jobs move on, so that none slips past the walk.
pub(crate) const STATES: [JobState; 3] = [JobState::Scheduled, JobState::Waiting, JobState::Ready];

pub(super) async fn always(context: Arc<Context>) {
    // The steps that the broker has read at its start.
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
        next = until_done(&context, "applying a new priority_step", || run_once(&context)).await;
    }
}

/// Walks through every type that needs it; returns when to do so again.
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
                // If the step was changed again, `rerank_due` knows.
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

/// One walk through the jobs of a type; returns how many were left.
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

/// Where the walk through a state starts.
pub(crate) fn start_of(state: JobState) -> WalkPosition {
    WalkPosition { state, rank: i64::MIN, id: i64::MIN }
}

/// One step of a walk, with a priority if somebody gives these jobs one: how many jobs were changed, how many were left because they were locked, and the position of the
/// next step.
pub(crate) async fn step(
    context: &Context,
    type_id: TypeId,
    priority: Option<(i16, &Actor)>,
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

/// Tells all brokers, because jobs may be below the rank from which they claim.
pub(crate) fn announce(context: &Context, type_id: TypeId, lowest_rank: i64) {
    let ready = Ready { type_id, lowest_rank, jobs: 1 };
    context.dispatch.ready_everywhere(&[ready]);
}
