//! The archive: writes finished jobs to Parquet files (crate `howdah-archive`) before their day partition is dropped.
//!
//! One run at a time archives a day, and it may be killed at any point. The next run deletes or completes what each
//! step has left: see [`Step`]. Each transaction reads at most one page of jobs, so that VACUUM is not held up.

mod day; // one day, and the steps of its run
mod error; // errors
mod expire; // deletion of days beyond the retention
pub(crate) mod find; // lookup of archived jobs, and their view for operators
mod forget; // deletion of single jobs
mod history; // finished jobs of the database and of the archive
mod keyed; // lookup of archived jobs by their key
mod pace; // speed of a run
mod read; // rows of a day, page by page, into files; names of task types
mod restore; // enqueues archived jobs again

use std::{sync::Arc, time::Duration};

use howdah_archive::{Bounds, Manifest};
use howdah_core::config::ArchivePayloads;

pub use day::{OnStep, Step};
pub use error::ArchiveError;
pub use find::{Reader, view};
pub use forget::{ForgetProgress, ForgetQuery, Forgotten, OnForget};
pub use history::{HistoryQuery, Take};
pub(crate) use keyed::{ArchivePosition, KeyQuery};
pub use restore::{Restore, RestoreEvent};

use crate::store::Store;

/// A day counts as over this many minutes after midnight (UTC), when the transactions from before midnight have
/// normally ended. Sealing the day waits for those that still run.
pub const OVER_MINUTES: i32 = 5;

/// Time after the last heartbeat of an archive run until another run may take over its day.
const HELD: Duration = Duration::from_secs(120);

/// Writes the finished jobs of whole days to an archive.
#[derive(Clone)]
pub struct Archiver {
    store: Store,
    url: String,
    payloads: ArchivePayloads,
    who: String,
    database: String,
    bounds: Bounds,
    share: f64,
    on_step: OnStep,
    on_forget: OnForget,
}

/// A day that was archived.
#[derive(Clone, Debug)]
pub struct Archived {
    /// The day's manifest.
    pub manifest: Manifest,
    /// Number of jobs written by this run; 0 if it only completed the files of an earlier run.
    pub jobs: i64,
    /// Number of bytes written by this run.
    pub bytes: u64,
    /// Duration of the run.
    pub took: Duration,
}

impl Archiver {
    /// Creates an archiver that writes to this URL. `who` is the name of the broker; `database` is the identity of the
    /// database.
    pub fn new(store: Store, url: &str, payloads: ArchivePayloads, who: &str, database: &str) -> Self {
        Self {
            store,
            url: url.to_owned(),
            payloads,
            who: who.to_owned(),
            database: database.to_owned(),
            bounds: Bounds::default(),
            share: 1.0,
            on_step: Arc::new(|_| {}),
            on_forget: Arc::new(|_| {}),
        }
    }

    /// Replaces the default memory limits of an archive run.
    #[must_use]
    pub fn with_bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Sets the share of a processor that archive runs may use while the database is busy. 1 means no limit.
    #[must_use]
    pub fn with_share(mut self, share: f64) -> Self {
        self.share = share;
        self
    }

    /// Sets the callback for the progress of deleting archived jobs.
    #[must_use]
    pub fn on_forget(mut self, on_forget: OnForget) -> Self {
        self.on_forget = on_forget;
        self
    }

    /// Sets the callback that is called after each step of an archive run. Tests kill the program in the callback.
    #[must_use]
    pub fn on_step(mut self, on_step: OnStep) -> Self {
        self.on_step = on_step;
        self
    }

    /// Archives a day. Returns `None` if another run works on the day, or if the day has no jobs to archive.
    pub async fn archive(&self, day: &str) -> Result<Option<Archived>, ArchiveError> {
        let run = format!("{:016x}", rand::random::<u64>());
        let result = day::archive(self, day, &run).await;
        if let Err(error) = &result {
            // Releases the day, so that another run can continue at once. Needs a reachable database.
            let noted = self.store.record_day_error(day, &run, &error.to_string()).await;
            if let Err(problem) = noted {
                tracing::debug!(%problem, day, "cannot release the day of a failed run; other runs wait {HELD:?}");
            }
        }
        result
    }

    /// Returns the number that the names of a day's files contain: the store number, so that all stores of a broker can
    /// use one archive. An archived day keeps the number in its manifest.
    async fn number(&self, noted: Option<&Manifest>) -> Result<u32, ArchiveError> {
        match noted {
            Some(noted) => Ok(noted.store),
            None => Ok(self.store.facts().await?.number.get().into()),
        }
    }

    /// Returns the past days that have unarchived jobs, oldest first. `with_today` adds the current day.
    pub async fn days(&self, with_today: bool) -> Result<Vec<String>, ArchiveError> {
        Ok(self.store.days_to_archive(OVER_MINUTES, with_today).await?)
    }
}

/// Manifest of a day as recorded in the database; `None` if nothing of the day is archived.
fn noted(day: &str, text: &str) -> Result<Option<Manifest>, ArchiveError> {
    if text.is_empty() { Ok(None) } else { parse(day, text).map(Some) }
}

fn parse(day: &str, text: &str) -> Result<Manifest, ArchiveError> {
    serde_json::from_str(text).map_err(|error| unreadable(day, &error))
}

fn text(day: &str, manifest: &Manifest) -> Result<String, ArchiveError> {
    serde_json::to_string(manifest).map_err(|error| unreadable(day, &error))
}

fn unreadable(day: &str, error: &serde_json::Error) -> ArchiveError {
    ArchiveError::Manifest { day: day.to_owned(), problem: error.to_string() }
}
