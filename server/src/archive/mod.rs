//! The archive: finished jobs become Parquet files (the crate `howdah-archive`) before their partition is dropped.
//!
//! A day is written by one run at a time, which may be killed anywhere. What each step leaves behind, the next run either
//! deletes or finishes: see [`Step`]. No transaction is longer than a page, so VACUUM is not held up.

mod day; // one day
mod error; // what may go wrong
mod expire; // days that are older than is kept
pub(crate) mod find; // archived jobs, found again
mod forget; // files that are written anew without some jobs
mod history; // finished jobs of the database and of the archive in one
mod names; // of task types
mod pace; // how fast a run goes
mod read; // rows of a day, page by page, into files
mod restore; // archived jobs, enqueued again
mod step; // the steps of a run
mod view; // archived jobs, as operators see them

use std::{sync::Arc, time::Duration};

use howdah_archive::{Bounds, Manifest};

pub use error::ArchiveError;
pub use find::Reader;
pub use forget::{ForgetProgress, ForgetQuery, Forgotten, OnForget};
pub use history::{HistoryQuery, Take};
pub use restore::{Restore, RestoreEvent};
pub use step::{OnStep, Step};
pub(crate) use view::view;

use crate::{config::ArchivePayloads, store::Store};

/// A day is over so many minutes after midnight (UTC): transactions that began before it have ended then, and those that
/// have not are waited for when the day is sealed.
pub const OVER_MINUTES: i32 = 5;

/// For how long a run has its day after its last sign of life.
const HELD: Duration = Duration::from_secs(120);

/// Archives days.
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
    /// What the day consists of now.
    pub manifest: Manifest,
    /// Jobs that this run has written; 0: it finished what an earlier one had written.
    pub jobs: i64,
    /// Bytes that this run has written.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Archiver {
    /// To this URL, as `who`. `database` is the identity of the database.
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

    /// The same, with other bounds of memory.
    #[must_use]
    pub fn with_bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// The same, which takes this share of a processor while the database is busy; 1: all that it gets.
    #[must_use]
    pub fn with_share(mut self, share: f64) -> Self {
        self.share = share;
        self
    }

    /// The same, told of each file that a forget is done with.
    #[must_use]
    pub fn on_forget(mut self, on_forget: OnForget) -> Self {
        self.on_forget = on_forget;
        self
    }

    /// The same, told of each step. For tests, which end the program there.
    #[must_use]
    pub fn on_step(mut self, on_step: OnStep) -> Self {
        self.on_step = on_step;
        self
    }

    /// Archives a day; `None`: another run has it, or there is nothing to do.
    pub async fn archive(&self, day: &str) -> Result<Option<Archived>, ArchiveError> {
        let run = format!("{:016x}", rand::random::<u64>());
        let result = day::archive(self, day, &run).await;
        if let Err(error) = &result {
            // The day is free for the next run at once, if the database can be told.
            let noted = self.store.failed_day(day, &run, &error.to_string()).await;
            if let Err(problem) = noted {
                tracing::debug!(%problem, day, "the failed run keeps its day for a moment");
            }
        }
        result
    }

    /// The number in the names of a day's files: that of the store, so that all stores of a broker can archive to one place. A
    /// day stays under the number that its manifest says.
    async fn number(&self, noted: Option<&Manifest>) -> Result<u32, ArchiveError> {
        match noted {
            Some(noted) => Ok(noted.store),
            None => Ok(self.store.facts().await?.number.get().into()),
        }
    }

    /// Days that are over and not archived, the oldest first.
    pub async fn days(&self, with_today: bool) -> Result<Vec<String>, ArchiveError> {
        Ok(self.store.days_to_archive(OVER_MINUTES, with_today).await?)
    }
}

/// The manifest of a day as the database has it; `None`: nothing is archived of it.
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
