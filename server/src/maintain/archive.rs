//! Days that are over are archived. Every broker with an `archive_url` tries; a day is taken by one of them.

use std::{sync::Arc, time::Duration};

use super::{Context, in_turn, retention::ARCHIVE_LATE_MINUTES, until_done};
use crate::{
    apart::apart,
    archive::{ArchiveError, Archiver},
    store::StoreError,
};

/// How often days are looked for, and the metric is read.
const EVERY: Duration = Duration::from_secs(60);
/// The longest pause after failures.
const LONGEST: Duration = Duration::from_secs(600);

pub(super) async fn always(context: Arc<Context>) {
    let archiver = match &context.config.archive_url {
        Some(url) => Some(Arc::new(until_done(&context, "preparing the archive", || prepare(&context, url)).await)),
        None => None,
    };
    let mut pause = EVERY;
    loop {
        if let Some(archiver) = &archiver {
            let (context, archiver) = (context.clone(), archiver.clone());
            let good = apart(async move { run_once(&context, &archiver).await }).await;
            pause = if good.unwrap_or(false) { EVERY } else { (pause * 2).min(LONGEST) };
        }
        // The metric does not wait for a directory or a bucket that is away.
        let until = tokio::time::Instant::now() + pause;
        while tokio::time::Instant::now() < until {
            in_turn(&context, "looking for days to archive", || look(&context)).await;
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

async fn look(context: &Context) -> Result<(), StoreError> {
    context.metrics.archive.late.set(context.store.archive_overdue(ARCHIVE_LATE_MINUTES).await?);
    Ok(())
}

/// Archives all days that are over; false: something failed.
pub(super) async fn run_once(context: &Context, archiver: &Archiver) -> bool {
    let days = match archiver.days(false).await {
        Ok(days) => days,
        Err(error) => {
            tracing::debug!(%error, "days are looked for again in a minute");
            return true;
        }
    };
    let mut good = true;
    for day in days {
        good &= archive(context, archiver, &day).await;
    }
    good & expire(context, archiver).await
}

/// Deletes days that are older than is kept; false: something failed.
async fn expire(context: &Context, archiver: &Archiver) -> bool {
    let Some(days_kept) = context.config.archive_days else { return true };
    let days = match archiver.expired(days_kept).await {
        Ok(days) => days,
        Err(error) => {
            tracing::debug!(%error, "old days of the archive are looked for again in a minute");
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
                tracing::warn!(day, %error, "an old day of the archive could not be deleted; it is tried again");
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
        // Another run has it, or a long transaction still writes to it: there is time.
        Ok(None) | Err(ArchiveError::Store(StoreError::Locked(_)) | ArchiveError::TakenOver(_)) => true,
        Err(error) => {
            metrics.failures.inc();
            tracing::warn!(day, %error, "a day could not be archived; its partition is kept, and it is tried again");
            false
        }
    }
}
