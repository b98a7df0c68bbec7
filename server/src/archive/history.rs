//! Finished jobs of the database and of the archive in one: day by day, the newest first.

use std::{
    ops::ControlFlow,
    time::{SystemTime, UNIX_EPOCH},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use howdah_archive::{Job, OpenFile, Row, Wanted};
use tokio::sync::mpsc;

use super::{ArchiveError, Reader, names::Names};
use crate::store::{ArchivedFile, HistoryChoice, HistoryDay};

/// Files whose footers are read together.
const OPENED: usize = 16;
/// Pieces of row groups that wait for whoever takes jobs, besides the one that is decoded and the one that is taken.
const PIECES: usize = 1;

/// Which finished jobs are wanted: those that all of it fits.
#[derive(Clone, Debug, Default)]
pub struct HistoryQuery {
    /// Of this type.
    pub task_type: Option<String>,
    /// With this key; only together with a type.
    pub key: Option<String>,
    /// That ended like this: `succeeded`, `cancelled`, `expired` or `discarded`.
    pub outcome: Option<String>,
    /// That ended at this time or later.
    pub since: Option<SystemTime>,
    /// That ended before this time.
    pub until: Option<SystemTime>,
    /// With payloads and results.
    pub payloads: bool,
    /// Only from the files of the archive. Then a key needs no type.
    pub archived_only: bool,
}

/// Takes jobs, one by one, until it has enough of them.
pub trait Take {
    /// Why it cannot go on.
    type Error: From<ArchiveError>;

    /// Takes a job.
    fn take(&mut self, job: &Job<'_>) -> Result<ControlFlow<()>, Self::Error>;

    /// Called after each job that was taken: whoever gathers jobs may work on them here, and holds up the reading.
    fn catch_up(&mut self) -> impl Future<Output = Result<(), Self::Error>> {
        std::future::ready(Ok(()))
    }
}

/// Takes a job, and waits until there is room for the next one.
async fn hand_over<T: Take>(to: &mut T, job: &Job<'_>) -> Result<ControlFlow<()>, T::Error> {
    let flow = to.take(job)?;
    to.catch_up().await?;
    Ok(flow)
}

impl Reader {
    /// Reads the jobs that are wanted: the newest day first, those of a day in no particular order. Each end of a job is a row.
    /// A job that ends while this runs may be among them or not; all others are, once.
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
        // Of a type that was deleted, the database has no jobs.
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

    /// Jobs that the database has, and the files have not.
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
                if hand_over(to, &job.as_job(names.of(job.type_id()))).await?.is_break() {
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
        let wanted = Wanted {
            since: query.since.map(micros),
            until: query.until.map(micros),
            key: query.key.clone(),
            outcome: query.outcome.clone(),
        };
        let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
        let opened = files.into_iter().map(|file| async {
            let file = self.candidate(file).await?;
            Ok::<_, ArchiveError>(OpenFile::open(file.place, &file.path, file.bytes).await?)
        });
        let (sender, mut pieces) = mpsc::channel::<Vec<Row>>(PIECES);
        let wanted = &wanted;
        // Ends when all is read, or when nobody takes what is read.
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

    /// Whether a day has other files than it had.
    async fn are_replaced(&self, day: &str, before: &[String]) -> Result<bool, ArchiveError> {
        let now = self.store.history_day(day, None).await?;
        Ok(before.iter().any(|path| now.files.iter().all(|file| file.path != *path)))
    }
}

/// Whether jobs may have gone from the database to files that are not known, while those of the database were read.
fn has_moved(before: &HistoryDay, now: &HistoryDay) -> bool {
    let changed = (before.generation, &before.state) != (now.generation, &now.state);
    changed && if before.late { before.has_late } else { now.state == "dropped" }
}

/// Microseconds since 1970.
pub(super) fn micros(time: SystemTime) -> i64 {
    let micros = |duration: std::time::Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    time.duration_since(UNIX_EPOCH).map_or_else(|error| -micros(error.duration()), micros)
}
