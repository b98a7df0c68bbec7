//! Finished jobs of the database and of the archive combined: day by day, newest first.

use std::{
    ops::ControlFlow,
    time::{SystemTime, UNIX_EPOCH},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use howdah_archive::{Job, JobFilter, OpenFile, Row};
use tokio::sync::mpsc;

use super::{ArchiveError, Reader, read::Names};
use crate::store::{ArchivedFile, HistoryChoice, HistoryDay};

/// Number of files whose footers are read concurrently.
const OPENED: usize = 16;
/// Number of decoded pieces of row groups to buffer for the consumer, besides the piece being decoded and the one being
/// consumed.
const PIECES: usize = 1;

/// Selection of finished jobs; a job must match all fields.
#[derive(Clone, Debug, Default)]
pub struct HistoryQuery {
    /// Jobs of this type.
    pub task_type: Option<String>,
    /// Jobs with this key; requires a type.
    pub key: Option<String>,
    /// Jobs with this outcome: `succeeded`, `cancelled`, `expired` or `discarded`.
    pub outcome: Option<String>,
    /// Jobs that ended at this time or later.
    pub since: Option<SystemTime>,
    /// Jobs that ended before this time.
    pub until: Option<SystemTime>,
    /// Whether to read payloads and results.
    pub payloads: bool,
    /// Whether to read only archive files and not the database. A `key` then requires no `task_type`.
    pub archived_only: bool,
}

/// Consumer of finished jobs, called for one job at a time. The consumer can stop the reading early.
pub trait Take {
    /// Error of the consumer, which stops the reading.
    type Error: From<ArchiveError>;

    /// Consumes a job.
    fn take(&mut self, job: &Job<'_>) -> Result<ControlFlow<()>, Self::Error>;

    /// Called after each consumed job. A consumer that collects jobs can process them here; reading waits meanwhile.
    fn catch_up(&mut self) -> impl Future<Output = Result<(), Self::Error>> {
        std::future::ready(Ok(()))
    }
}

/// Passes a job to the consumer, and waits until the consumer can take the next job.
async fn hand_over<T: Take>(to: &mut T, job: &Job<'_>) -> Result<ControlFlow<()>, T::Error> {
    let flow = to.take(job)?;
    to.catch_up().await?;
    Ok(flow)
}

impl Reader {
    /// Reads the selected jobs, newest day first, without an order inside a day. A job that ended several times is
    /// returned once for each time. A job that ends during the call may be missing.
    pub async fn history<T: Take>(&self, query: &HistoryQuery, to: &mut T) -> Result<(), T::Error> {
        let mut names = Names::read(&self.store).await.map_err(ArchiveError::from)?;
        let days = self.store.history_days(query.since, query.until).await.map_err(ArchiveError::from)?;
        for day in days {
            if self.day(&day, query, &mut names, to).await?.is_break() {
                break;
            }
        }
        Ok(())
    }

    async fn day<T: Take>(
        &self,
        day: &str,
        query: &HistoryQuery,
        names: &mut Names,
        to: &mut T,
    ) -> Result<ControlFlow<()>, T::Error> {
        let known = self.store.history_day(day, query.task_type.as_deref()).await.map_err(ArchiveError::from)?;
        let type_id = query.task_type.as_deref().map(|name| names.number_of(name));
        // Skips the database for a deleted type (`Some(None)`), whose jobs are only in files, and for an archived day
        // without late jobs.
        if !query.archived_only && type_id != Some(None) && (known.has_late || !known.late) {
            let choice = HistoryChoice {
                type_id: type_id.flatten(),
                key: query.key.clone(),
                outcome: query.outcome.clone(),
                since: query.since,
                until: query.until,
                payloads: query.payloads,
            };
            if self.live(day, known.late, &choice, names, to).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let now = self.store.history_day(day, None).await.map_err(ArchiveError::from)?;
            if has_moved(&known, &now) {
                return Err(ArchiveError::Moved(day.to_owned()).into());
            }
        }
        self.files(day, known.files, query, to).await
    }

    /// Reads the jobs of a day that are in the database and not in the archive files.
    async fn live<T: Take>(
        &self,
        day: &str,
        late: bool,
        choice: &HistoryChoice,
        names: &mut Names,
        to: &mut T,
    ) -> Result<ControlFlow<()>, T::Error> {
        let mut after = Some(i64::MIN);
        while let Some(id) = after {
            let page = self.store.history_page(day, late, id, choice).await.map_err(ArchiveError::from)?;
            names.know(&self.store, &page.jobs).await.map_err(ArchiveError::from)?;
            for job in &page.jobs {
                if hand_over(to, &job.as_job(names.name(job.type_id()))).await?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            after = page.next;
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn files<T: Take>(
        &self,
        day: &str,
        files: Vec<ArchivedFile>,
        query: &HistoryQuery,
        to: &mut T,
    ) -> Result<ControlFlow<()>, T::Error> {
        let wanted = JobFilter {
            since: query.since.map(micros),
            until: query.until.map(micros),
            key: query.key.clone(),
            outcome: query.outcome.clone(),
        };
        let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
        let opened = files.into_iter().map(|file| async {
            let file = self.candidate(file).await?;
            Ok::<_, ArchiveError>(OpenFile::open(file.location, &file.path, file.bytes).await?)
        });
        let (sender, mut pieces) = mpsc::channel::<Vec<Row>>(PIECES);
        let wanted = &wanted;
        // Returns when all files are read, or when the consumer stops the reading.
        let read = async move {
            let mut opened = std::pin::pin!(stream::iter(opened).buffered(OPENED));
            while let Some(file) = opened.try_next().await? {
                for group in 0..file.group_count() {
                    if !file.select_to(group, wanted, query.payloads, &sender).await? {
                        return Ok(());
                    }
                }
            }
            Ok::<_, ArchiveError>(())
        };
        let taken = async move {
            while let Some(rows) = pieces.recv().await {
                for row in rows {
                    if hand_over(to, &row.as_job()).await?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Ok::<_, T::Error>(ControlFlow::Continue(()))
        };
        let (read, taken) = tokio::join!(read, taken);
        match read {
            Err(ArchiveError::Files(error)) if error.is_missing() && self.are_replaced(day, &paths).await? => {
                Err(ArchiveError::Moved(day.to_owned()).into())
            }
            read => {
                let flow = taken?;
                read?;
                Ok(flow)
            }
        }
    }

    /// Whether any archive file of the day in `before` has been replaced.
    async fn are_replaced(&self, day: &str, before: &[String]) -> Result<bool, ArchiveError> {
        let now = self.store.history_day(day, None).await?;
        Ok(before.iter().any(|path| now.files.iter().all(|file| file.path != *path)))
    }
}

/// Whether jobs may have moved from the database to files that `before` does not list, while the database was read.
fn has_moved(before: &HistoryDay, now: &HistoryDay) -> bool {
    let changed = (before.generation, &before.state) != (now.generation, &now.state);
    changed && if before.late { before.has_late } else { now.state == "dropped" }
}

/// Microseconds since 1970.
pub(super) fn micros(time: SystemTime) -> i64 {
    let micros = |duration: std::time::Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    time.duration_since(UNIX_EPOCH).map_or_else(|error| -micros(error.duration()), micros)
}
