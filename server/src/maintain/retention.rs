//! The daily partitions of history: created ahead, and dropped when they are old. Jobs of types that are kept for a
//! shorter time are deleted before that. Old request keys are deleted too.

use std::{sync::Arc, time::Duration};

use super::{Context, until_done};
use crate::{backoff::Backoff, store::StoreError};

const EVERY: Duration = Duration::from_secs(3600);
/// When old rows that were in use are tried again, at first. While we wait for a long reader, every ack waits behind us: so
/// the pauses double, up to an hour.
const RETRY: Duration = Duration::from_secs(10);
/// How often a missing partition is looked for.
const PARTITIONS_EVERY: Duration = Duration::from_secs(60);
/// For so many days more than history is kept, an unused task type is kept.
pub(crate) const UNUSED_DAYS: i64 = 2;
/// The most task types that are deleted at once.
const TYPES: i32 = 1_000;
/// How many days ahead partitions are created.
pub(super) const AHEAD: i32 = 3;
/// The most request keys in a statement.
const BATCH: i32 = 10_000;
/// A day that is over for so long and is not archived is late, if there is an archive.
pub(crate) const ARCHIVE_LATE_MINUTES: i32 = 120;
/// The most bulk operations that have ended; the oldest are deleted first.
pub(crate) const BULKS: i64 = 10_000;
/// The blocks of a history partition in a statement: 8 MiB.
const BLOCKS: i64 = 1_024;

pub(super) async fn always(context: Arc<Context>) {
    let mut retries = Backoff::new(RETRY, EVERY);
    loop {
        let pause = if until_done(&context, "maintaining history", || run_once(&context)).await {
            retries.reset();
            EVERY
        } else {
            retries.advance()
        };
        let next = tokio::time::Instant::now() + pause;
        while tokio::time::timeout_at(next, partitions_wanted(&context)).await.is_ok() {
            until_done(&context, "making partitions", || make_partitions(&context)).await;
        }
    }
}

/// Somebody misses a partition, or it is time to look.
async fn partitions_wanted(context: &Context) {
    let _ = tokio::time::timeout(PARTITIONS_EVERY, context.partitions_now.notified()).await;
}

async fn make_partitions(context: &Context) -> Result<(), StoreError> {
    match context.store.make_partitions(AHEAD).await {
        Ok(0) => {}
        Ok(partitions) => tracing::info!(partitions, "made partitions of history and payloads"),
        // A long reader. There are partitions for days.
        Err(StoreError::Locked(error)) => tracing::warn!(%error, "history is in use; making partitions in a minute"),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Creates partitions, drops old ones, and deletes old request keys. False: old rows were in use.
pub(super) async fn run_once(context: &Context) -> Result<bool, StoreError> {
    make_partitions(context).await?;
    let history = dropped(
        context.store.drop_partitions(i32::from(context.config.history_days)).await,
        "old history",
        context.config.history_days,
    );
    let audit = dropped(
        context.store.drop_audit_partitions(i32::from(context.config.audit_days)).await,
        "old rows of the audit",
        context.config.audit_days,
    );
    context.store.delete_idle_limit_states().await?;
    prune(context).await?;
    while context.store.delete_expired_requests(BATCH).await? {}
    context.store.forget_moved(i32::from(context.config.history_days)).await?;
    context.store.delete_old_bulks(i32::from(context.config.history_days), BULKS).await?;
    delete_unused_types(context).await?;
    Ok(history && audit)
}

/// Says what became of old partitions; false: they are tried again.
fn dropped(result: Result<i32, StoreError>, what: &str, days_kept: u16) -> bool {
    match result {
        Ok(0) => {}
        Ok(partitions) => tracing::info!(partitions, days_kept, "dropped {what}"),
        Err(error) => {
            tracing::warn!(%error, "{what}: in use; trying to drop them again soon");
            return false;
        }
    }
    true
}

/// Deletes task types that nobody has used for longer than history is kept. Types that workers wait for are in use. While days
/// wait for the archive there is older history, whose jobs need the names of their types.
async fn delete_unused_types(context: &Context) -> Result<(), StoreError> {
    if context.store.archive_overdue(ARCHIVE_LATE_MINUTES).await? > 0 {
        return Ok(());
    }
    context.store.use_task_types(&context.dispatch.subscribed()).await?;
    let kept = context.registry.longest_history().max(i64::from(context.config.history_days));
    let deleted = context.store.delete_unused_task_types(kept + UNUSED_DAYS, TYPES).await?;
    if let Some(first) = deleted.first() {
        tracing::info!(types = deleted.len(), %first, "deleted task types that were unused");
    }
    Ok(())
}

/// Deletes jobs of types that are kept for a shorter time than others. Each day is read once, in parts, so that no lock
/// is held for long.
async fn prune(context: &Context) -> Result<(), StoreError> {
    for day in context.store.prunable_history(i32::from(context.config.history_days)).await? {
        let (mut from, mut jobs) = (Some(0), 0);
        while let Some(block) = from {
            let (deleted, next) = context.store.prune_history(&day, block, BLOCKS).await?;
            jobs += deleted;
            from = next;
        }
        context.store.history_pruned(&day).await?;
        tracing::info!(jobs, day = day.day, "deleted old history of some types");
    }
    Ok(())
}
