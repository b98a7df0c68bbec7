//! Maintenance task: archives the finished jobs of past days. Every broker with an `archive_url` tries; each day is
//! archived by one of them.

use std::{sync::Arc, time::Duration};

use super::{Context, clock, retention::ARCHIVE_LATE_MINUTES, run_serialized, until_done};
use crate::{
    archive::{ArchiveError, Archiver},
    compute_pool,
    store::StoreError,
};

/// Interval of looking for days to archive, and of updating the metric of overdue days.
const EVERY: Duration = Duration::from_secs(60);
/// Maximum pause after failed archiving.
const LONGEST: Duration = Duration::from_secs(600);

pub(super) async fn run(context: Arc<Context>) {
    let archiver = match &context.config.archive_url {
        Some(url) => Some(Arc::new(until_done(&context, "preparing the archive", || prepare(&context, url)).await)),
        None => None,
    };
    let mut pause = EVERY;
    loop {
        if let Some(archiver) = &archiver {
            let (context, archiver) = (context.clone(), archiver.clone());
            let good = compute_pool::run(async move { run_once(&context, &archiver).await }).await;
            pause = if good.unwrap_or(false) { EVERY } else { (pause * 2).min(LONGEST) };
        }
        // The metric is updated every minute, even if an unreachable directory or bucket has lengthened the pause.
        let until = tokio::time::Instant::now() + pause;
        while tokio::time::Instant::now() < until {
            run_serialized(&context, "looking for days to archive", || archive_due_days(&context)).await;
            tokio::time::sleep(EVERY.min(until - tokio::time::Instant::now())).await;
        }
    }
}

async fn prepare(context: &Context, url: &str) -> Result<Archiver, StoreError> {
    let database = context.store.database_id().await?;
    let config = &context.config;
    let archiver = Archiver::new(context.store.clone(), url, config.archive_payloads, &config.name, &database);
    Ok(archiver.with_share(config.archive_share))
}

async fn archive_due_days(context: &Context) -> Result<(), StoreError> {
    context.metrics.archive.late.set(context.store.archive_overdue(ARCHIVE_LATE_MINUTES).await?);
    Ok(())
}

/// Archives all past days that are not archived yet. Returns false if a day failed.
pub(super) async fn run_once(context: &Context, archiver: &Archiver) -> bool {
    // With a database clock that is ahead, unfinished days would be archived, and files deleted too early.
    if !clock::agrees(context).await.unwrap_or(false) {
        return true;
    }
    let days = match archiver.days(false).await {
        Ok(days) => days,
        Err(error) => {
            tracing::debug!(%error, "cannot list the days to archive; trying again in a minute");
            return true;
        }
    };
    let mut good = true;
    for day in days {
        good &= archive(context, archiver, &day).await;
    }
    good & expire(context, archiver).await
}

/// Deletes archived days that are older than `archive_days`. Returns false if something failed.
async fn expire(context: &Context, archiver: &Archiver) -> bool {
    let Some(days_kept) = context.config.archive_days else { return true };
    let days = match archiver.expired(days_kept).await {
        Ok(days) => days,
        Err(error) => {
            tracing::debug!(%error, "cannot list the expired days of the archive; trying again in a minute");
            return true;
        }
    };
    let mut good = true;
    for day in days {
        match archiver.expire(&day, days_kept).await {
            Ok(Some(files)) => {
                context.metrics.archive.expired_days.inc();
                tracing::info!(day, files, days_kept, "deleted an old day of the archive");
            }
            Ok(None) | Err(ArchiveError::Store(StoreError::Locked(_))) => {}
            Err(error) => {
                context.metrics.archive.failures.inc();
                tracing::warn!(day, %error, "cannot delete an old day of the archive; trying again later");
                good = false;
            }
        }
    }
    good
}

async fn archive(context: &Context, archiver: &Archiver, day: &str) -> bool {
    let metrics = &context.metrics.archive;
    match archiver.archive(day).await {
        Ok(Some(done)) => {
            metrics.jobs.inc_by(done.jobs.max(0) as u64);
            metrics.bytes.inc_by(done.bytes);
            let took_ms = done.took.as_millis() as u64;
            tracing::info!(day, jobs = done.jobs, bytes = done.bytes, took_ms, "archived a day");
            true
        }
        // Another broker archives the day, or a long transaction still writes to it. The day is tried again later.
        Ok(None) | Err(ArchiveError::Store(StoreError::Locked(_)) | ArchiveError::TakenOver(_)) => true,
        Err(error) => {
            metrics.failures.inc();
            tracing::warn!(day, %error, "cannot archive a day; its partition is kept; trying again later");
            false
        }
    }
}
