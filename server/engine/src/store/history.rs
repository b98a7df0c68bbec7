//! Queries for finished jobs in the database. They return rows of the same form as the archive, so that a search can
//! read both.

use std::time::{Duration, SystemTime};

use howdah_core::job::TypeId;
use tokio_postgres::Row;

use super::{
    Statement, Store, StoreError,
    archive::{ArchivedFile, BY_ID, FinishedJob},
    connection::Param,
    rows::FromRow as _,
};

/// Timeout of reading one page, a bounded scan step of [`PAGE`] jobs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of jobs that one page scans.
const PAGE: i32 = 10_000;

/// Filter of finished jobs in the database.
#[derive(Clone, Debug, Default)]
pub struct HistoryChoice {
    pub type_id: Option<TypeId>,
    /// Key of the jobs. Only valid together with a task type.
    pub key: Option<String>,
    /// Outcome of the jobs.
    pub outcome: Option<String>,
    /// Earliest end time.
    pub since: Option<SystemTime>,
    /// Latest end time (exclusive).
    pub until: Option<SystemTime>,
    /// Whether to return payloads and results.
    pub payloads: bool,
}

/// Sources of the finished jobs of a day: archive files, and jobs in the database.
#[derive(Clone, Debug)]
pub struct HistoryDay {
    /// Archive state of the day, as in `ArchivedDay`. Empty if archiving has not begun.
    pub state: String,
    /// Number of times that jobs of the day were archived. 0 if archiving has not begun.
    pub generation: i32,
    /// Whether late jobs exist: jobs that arrived after the day was archived.
    pub has_late: bool,
    /// True if the archive files have all jobs of the day except late ones, so only late jobs must be read from the
    /// database. False if all jobs of the day in the database must be read.
    pub late: bool,
    /// Archive files of the day.
    pub files: Vec<ArchivedFile>,
}

/// A page of finished jobs of a day.
#[derive(Debug)]
pub struct HistoryPage {
    /// Jobs that match the filter.
    pub jobs: Vec<FinishedJob>,
    /// Highest id that was scanned. The next page begins after it. `None` at the end of the day.
    pub next: Option<i64>,
}

impl Store {
    /// Returns days with finished jobs in the database or in the archive, newest first.
    pub async fn history_days(
        &self,
        since: Option<SystemTime>,
        until: Option<SystemTime>,
    ) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::HistoryDays, &[&since, &until]).await
    }

    /// Returns the sources of the finished jobs of a day. `task_type` restricts the archive files to one task type.
    pub async fn history_day(&self, day: &str, task_type: Option<&str>) -> Result<HistoryDay, StoreError> {
        let rows = self.general().await?.query(Statement::HistoryDay, &[&day, &task_type]).await?;
        let first = rows.first();
        let has_path = |row: &&Row| row.get::<_, Option<&str>>("path").is_some();
        Ok(HistoryDay {
            state: first.map(|row| row.get("state")).unwrap_or_default(),
            generation: first.map(|row| row.get("generation")).unwrap_or_default(),
            has_late: first.is_some_and(|row| row.get("has_late")),
            late: first.is_some_and(|row| row.get("late")),
            files: rows.iter().filter(has_path).map(ArchivedFile::from_row).collect(),
        })
    }

    /// Returns matching jobs of a day in the database, after an id. `late` restricts them to jobs that arrived after
    /// the day was archived.
    pub async fn history_page(
        &self,
        day: &str,
        late: bool,
        after: i64,
        choice: &HistoryChoice,
    ) -> Result<HistoryPage, StoreError> {
        let HistoryChoice { type_id, key, outcome, since, until, payloads } = choice;
        let mut transaction = self.begin_general().await?;
        transaction.set_timeout(TIMEOUT);
        transaction.batch(BY_ID).await?;
        let mut params: Vec<Param<'_>> = vec![&day, &after, &PAGE, payloads, &late, type_id, outcome, since, until];
        let statement = match key {
            None => Statement::HistoryPage,
            Some(key) => {
                params.push(key);
                Statement::HistoryKeyPage
            }
        };
        let mut rows = transaction.query(statement, &params).await?;
        transaction.set_timeout(self.timeout);
        transaction.commit().await?;
        let next = rows.iter().map(|row| row.get(0)).max();
        rows.retain(|row| row.get("chosen"));
        Ok(HistoryPage { jobs: rows.into_iter().map(FinishedJob::new).collect(), next })
    }
}
