//! Finished jobs of the database, as the archive has them: for those who read both in one.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::{
    Statement, Store, StoreError,
    archive::{ArchivedFile, BY_ID, FinishedJob, file},
    connection::Param,
};
use crate::job::TypeId;

/// How long a page may take: it looks at [`PAGE`] jobs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The jobs that a page looks at.
const PAGE: i32 = 10_000;

/// Which finished jobs of the database are wanted.
#[derive(Clone, Debug, Default)]
pub struct HistoryChoice {
    /// Of this type.
    pub type_id: Option<TypeId>,
    /// With this key; only together with a type.
    pub key: Option<String>,
    /// That ended like this.
    pub outcome: Option<String>,
    /// That ended at this time or later.
    pub since: Option<SystemTime>,
    /// That ended before this time.
    pub until: Option<SystemTime>,
    /// With payloads and results.
    pub payloads: bool,
}

/// Where the finished jobs of a day are.
#[derive(Clone, Debug)]
pub struct HistoryDay {
    /// How far the archive is with it; empty: it has not begun.
    pub state: String,
    /// How often the day was written.
    pub generation: i32,
    /// Whether jobs came after the day was written.
    pub has_late: bool,
    /// Only such jobs of the database are not in the files.
    pub late: bool,
    /// Its files.
    pub files: Vec<ArchivedFile>,
}

/// A page of jobs of a day.
#[derive(Debug)]
pub struct HistoryPage {
    /// The wanted ones.
    pub jobs: Vec<FinishedJob>,
    /// The next page begins after this id; `None`: there are no more.
    pub next: Option<i64>,
}

impl Store {
    /// Days of which the database or the archive has finished jobs, the newest first.
    pub async fn history_days(
        &self,
        since: Option<SystemTime>,
        until: Option<SystemTime>,
    ) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::HistoryDays, &[&since, &until]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Where the finished jobs of a day are, those of one type or all.
    pub async fn history_day(&self, day: &str, task_type: Option<&str>) -> Result<HistoryDay, StoreError> {
        let rows = self.general().await?.query(Statement::HistoryDay, &[&day, &task_type]).await?;
        let first = rows.first();
        let has_path = |row: &&Row| row.get::<_, Option<&str>>("path").is_some();
        Ok(HistoryDay {
            state: first.map(|row| row.get("state")).unwrap_or_default(),
            generation: first.map(|row| row.get("generation")).unwrap_or_default(),
            has_late: first.is_some_and(|row| row.get("has_late")),
            late: first.is_some_and(|row| row.get("late")),
            files: rows.iter().filter(has_path).map(file).collect(),
        })
    }

    /// Wanted jobs of a day that the database has, after an id; `late`: only those that came after the day was written.
    pub async fn history_page(
        &self,
        day: &str,
        late: bool,
        after: i64,
        choice: &HistoryChoice,
    ) -> Result<HistoryPage, StoreError> {
        let HistoryChoice { type_id, key, outcome, since, until, payloads } = choice;
        let mut transaction = self.begin_general().await?;
        transaction.connection().set_timeout(TIMEOUT);
        transaction.connection().batch(BY_ID).await?;
        let mut params: Vec<Param<'_>> = vec![&day, &after, &PAGE, payloads, &late, type_id, outcome, since, until];
        let statement = match key {
            None => Statement::HistoryPage,
            Some(key) => {
                params.push(key);
                Statement::HistoryKeyPage
            }
        };
        let read = transaction.query(statement, &params).await;
        let mut rows = read?;
        transaction.connection().set_timeout(self.timeout);
        transaction.commit().await?;
        let next = rows.iter().map(|row| row.get(0)).max();
        rows.retain(|row| row.get("chosen"));
        Ok(HistoryPage { jobs: rows.into_iter().map(FinishedJob::of).collect(), next })
    }
}
