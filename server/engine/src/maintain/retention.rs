//! Maintenance task: creates the day partitions of history in advance, and drops old ones. Also discards old dead jobs,
//! and deletes old request keys, and jobs of task types with a shorter retention. The database's clock determines the
//! age of data, so nothing is deleted while that clock is unreliable.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Context, clock, until_done};
use crate::{
    backoff::Backoff,
    store::{Actor, DEFAULTS, StoreError},
};

const EVERY: Duration = Duration::from_secs(3600);
/// First pause before the drop of old partitions is retried because they were in use. Every ack waits behind a drop
/// that waits for a long reader, so the pauses double, up to an hour.
const RETRY: Duration = Duration::from_secs(10);
/// Interval at which missing partitions are looked for.
const PARTITIONS_EVERY: Duration = Duration::from_secs(60);
/// Number of days that an unused task type is kept longer than its history.
pub const UNUSED_DAYS: i64 = 2;
/// Maximum number of unused task types that one statement deletes.
const TYPES: i32 = 1_000;
/// Number of days for which partitions are created in advance.
pub(super) const AHEAD: i32 = 3;
/// Maximum number of request keys, and of versions of keys, in a statement.
const BATCH: i32 = 10_000;
/// Time after the end of a day after which its archiving is overdue, in minutes. Applies only with an archive.
pub(crate) const ARCHIVE_LATE_MINUTES: i32 = 120;
/// Maximum number of ended bulk operations; the oldest are deleted first.
pub const BULKS: i64 = 10_000;
/// Maximum number of dead jobs that a transaction discards.
const DEAD: i32 = 1_000;
/// Blocks of a history partition that a statement reads: 8 MiB.
const BLOCKS: i64 = 1_024;

/// Result of one round of maintenance of history.
enum Round {
    /// Everything was deleted.
    Done,
    /// A partition was locked by another transaction, so the round is retried.
    InUse,
    /// The round was ended early, because the database's clock is not reliable yet.
    ClockUnsure,
}

pub(super) async fn run(context: Arc<Context>) {
    let mut retries = Backoff::new(RETRY, EVERY);
    let mut locked = Backoff::new(RETRY, PARTITIONS_EVERY);
    loop {
        let pause = match until_done(&context, "maintaining history", || run_once(&context)).await {
            Round::Done => {
                retries.reset();
                EVERY
            }
            Round::InUse => retries.advance(),
            Round::ClockUnsure => clock::settles_in(&context),
        };
        let next = Instant::now() + pause;
        let mut interval = PARTITIONS_EVERY;
        while partitions_wanted(&context, interval, next).await {
            interval = if until_done(&context, "making partitions", || make_partitions(&context)).await {
                locked.reset();
                PARTITIONS_EVERY
            } else {
                locked.advance()
            };
        }
    }
}

/// Waits until a day partition is reported missing, or until `interval` has passed. Returns false if a whole round is due: at
/// `next`, or because tests have advanced the clock.
async fn partitions_wanted(context: &Context, interval: Duration, next: Instant) -> bool {
    tokio::select! {
        () = sleep_until(next) => false,
        () = context.clock_advanced.notified() => false,
        _ = timeout(interval, context.partitions_now.notified()) => true,
    }
}

/// Creates missing day partitions. Returns false if another transaction has locked history, so that the caller retries
/// soon. Until then the default partitions receive the rows.
async fn make_partitions(context: &Context) -> Result<bool, StoreError> {
    match context.store.make_partitions(AHEAD).await {
        Ok(0) => {}
        Ok(partitions) => tracing::info!(partitions, "created partitions of history and payloads"),
        Err(StoreError::Locked(error)) => {
            tracing::warn!(%error, "another transaction has locked history; trying to create partitions again soon");
            return Ok(false);
        }
        // The error is logged and not returned, so that the rest of the round still runs.
        Err(error @ StoreError::Refused(_)) => context.store.log_failure("making partitions", &error),
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// One part of a round. Returns false if the part must be retried because rows or partitions were in use.
type Part<'a> = BoxFuture<'a, Result<bool, StoreError>>;

/// Creates partitions, drops old ones, and deletes old rows.
async fn run_once(context: &Context) -> Result<Round, StoreError> {
    let made = make_partitions(context).await?;
    let noted = record_id_ranges(context).await?;
    let parts: [Part<'_>; 7] = [
        drop_history(context).boxed(),
        drop_audit(context).boxed(),
        discard_dead(context).boxed(),
        empty_defaults(context).boxed(),
        prune(context).boxed(),
        delete_rows(context).boxed(),
        delete_unused_types(context).boxed(),
    ];
    let mut round = if made && noted { Round::Done } else { Round::InUse };
    for part in parts {
        // The clock is checked before each part, because another database server may be promoted at any time.
        if !clock::agrees(context).await? {
            return Ok(Round::ClockUnsure);
        }
        if !part.await? {
            round = Round::InUse;
        }
    }
    Ok(round)
}

/// Discards dead jobs that are older than `dead_days` of their task type or of the cluster, in small transactions with one
/// audit row each. Returns false if some jobs must be tried again: another transaction has locked a dependent of one, or
/// Postgres refused the change.
async fn discard_dead(context: &Context) -> Result<bool, StoreError> {
    let mut is_done = true;
    for (type_id, days) in context.store.types_with_old_dead().await? {
        let by = Actor {
            principal: Some("maintenance".into()),
            broker: Some(context.config.name.clone()),
            peer: Some(String::new()),
            method: "dead_days",
            reason: format!("dead for more than {days} days"),
        };
        let mut jobs = 0;
        loop {
            if !clock::agrees(context).await? {
                return Ok(false);
            }
            match context.store.discard_old_dead(type_id, days, DEAD, &by).await {
                Ok((0, _)) => break,
                Ok((discarded, woken)) => {
                    jobs += discarded;
                    context.dispatch.wakeups(&woken);
                }
                Err(StoreError::Locked(error)) => {
                    tracing::debug!(%error, "another transaction has locked a job; discarding dead jobs later");
                    is_done = false;
                    break;
                }
                Err(error @ (StoreError::Refused(_) | StoreError::Conflict(_))) => {
                    context.store.log_failure("discarding dead jobs", &error);
                    is_done = false;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if jobs > 0 {
            tracing::info!(jobs, days, type_id, "discarded old dead jobs");
        }
    }
    Ok(is_done)
}

async fn drop_history(context: &Context) -> Result<bool, StoreError> {
    let days = context.config.history_days;
    Ok(dropped(context.store.drop_partitions(i32::from(days)).await, "old history", days))
}

async fn drop_audit(context: &Context) -> Result<bool, StoreError> {
    let days = context.config.audit_days;
    Ok(dropped(context.store.drop_audit_partitions(i32::from(days)).await, "old rows of the audit", days))
}

/// Deletes rows that are no longer needed.
async fn delete_rows(context: &Context) -> Result<bool, StoreError> {
    let days = i32::from(context.config.history_days);
    context.store.delete_idle_limit_states().await?;
    while context.store.delete_expired_requests(BATCH).await? {}
    while context.store.forget_key_versions(days, BATCH).await? {}
    context.store.forget_moved(days).await?;
    context.store.delete_old_bulks(days, BULKS).await?;
    Ok(true)
}

/// Logs the result of dropping old partitions. Returns false if the drop has to be retried.
fn dropped(result: Result<i32, StoreError>, what: &str, days_kept: u16) -> bool {
    match result {
        Ok(0) => {}
        Ok(partitions) => tracing::info!(partitions, days_kept, "dropped {what}"),
        Err(error) => {
            tracing::warn!(%error, "cannot drop {what}; trying again soon");
            return false;
        }
    }
    true
}

/// Deletes task types that have been unused for longer than history is kept. A type that workers subscribe to is in
/// use. Deletes no types while days wait for the archive, because jobs in older history need the names of their types.
async fn delete_unused_types(context: &Context) -> Result<bool, StoreError> {
    if context.store.archive_overdue(ARCHIVE_LATE_MINUTES).await? > 0 {
        return Ok(true);
    }
    context.store.use_task_types(&context.dispatch.subscribed()).await?;
    let kept = context.registry.longest_history().max(i64::from(context.config.history_days));
    let deleted = context.store.delete_unused_task_types(kept + UNUSED_DAYS, TYPES).await?;
    if let Some(first) = deleted.first() {
        tracing::info!(types = deleted.len(), %first, "deleted task types that were unused");
    }
    Ok(true)
}

/// Records the range of job ids for each past day, one day at a time. Returns false if another transaction has locked a
/// day.
async fn record_id_ranges(context: &Context) -> Result<bool, StoreError> {
    loop {
        match context.store.record_id_range().await {
            Ok(true) => {}
            Ok(false) => return Ok(true),
            Err(StoreError::Locked(error)) => {
                tracing::debug!(%error, "another transaction has locked a day partition; recording its job ids later");
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Deletes old rows from the default partitions in bounded scan steps, so that no lock is held for long.
async fn empty_defaults(context: &Context) -> Result<bool, StoreError> {
    let days_kept = i32::from(context.config.history_days);
    for table in DEFAULTS {
        let (mut from, mut rows) = (Some(0), 0);
        while let Some(block) = from {
            let (deleted, next) = context.store.delete_from_default(table, days_kept, block, BLOCKS).await?;
            rows += deleted;
            from = next;
        }
        if rows > 0 {
            tracing::info!(rows, days_kept, table = table.0, "deleted old rows from the default partition");
        }
    }
    Ok(true)
}

/// Deletes finished jobs of task types with a shorter retention than the default. Each day is read once, in bounded
/// scan steps, so that no lock is held for long.
async fn prune(context: &Context) -> Result<bool, StoreError> {
    for day in context.store.prunable_history(i32::from(context.config.history_days)).await? {
        let (mut from, mut jobs) = (Some(0), 0);
        while let Some(block) = from {
            let (deleted, next) = context.store.prune_history(&day, block, BLOCKS).await?;
            jobs += deleted;
            from = next;
        }
        context.store.history_pruned(&day).await?;
        tracing::info!(jobs, day = day.day, "deleted history of task types with a shorter retention");
    }
    Ok(true)
}
