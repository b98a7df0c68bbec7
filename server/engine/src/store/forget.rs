//! Statements of forget operations, which delete finished jobs before their retention ends, in the database and in
//! archive files.

use std::time::{Duration, SystemTime};

use howdah_archive::Manifest;
use howdah_core::job::TypeId;

use super::{Actor, Statement, Store, StoreError, audit::Change, rows::from_row};

/// Timeout of one transaction of a forget operation.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of blocks of a history partition that one transaction of a forget operation scans: 8 MiB at the default block
/// size. With a filter by key, an index finds the jobs instead.
const BLOCKS: i64 = 1_024;

/// Filter of finished jobs in the database. A job must match all fields that are set.
#[derive(Clone, Debug, Default)]
pub struct ForgetInHistory {
    /// Key of the jobs.
    pub key: Option<String>,
    pub type_id: Option<TypeId>,
    /// Only jobs that ended before this time.
    pub before: Option<SystemTime>,
}

/// An archived day that may have jobs that a forget operation must delete.
#[derive(Clone, Debug)]
pub struct ForgetDay {
    /// UTC day, such as `2026-11-22`.
    pub day: String,
    /// Whether a run is working on the day, or an archive run of the day was interrupted and not continued yet.
    pub is_busy: bool,
    /// Whether an interrupted forget operation has already written the replacement files of the day. Then these files
    /// only have to replace the old files.
    pub is_rewritten: bool,
}

from_row! { ForgetDay(row) { day, is_busy, is_rewritten } }

/// An archived day that a forget operation has reserved, in order to rewrite the archive files of the day.
#[derive(Clone, Debug)]
pub struct RewriteDay {
    /// URL of the archive.
    pub url: String,
    /// JSON manifest of the current archive files of the day.
    pub manifest: String,
    /// JSON manifest of the replacement files that an interrupted forget operation has recorded. Empty if no forget
    /// operation was interrupted.
    pub rewrite: String,
}

from_row! { RewriteDay(row) { url, manifest, rewrite } }

impl Store {
    /// Returns partitions of history that may have jobs which ended before a time.
    pub async fn history_parts(&self, before: Option<SystemTime>) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::HistoryParts, &[&before]).await
    }

    /// Deletes matching jobs of a history partition in small transactions, and writes audit rows with the author `by`.
    /// If `by` is `None`, only counts the jobs. Returns the number of jobs.
    pub async fn forget_history(
        &self,
        part: &str,
        choice: &ForgetInHistory,
        by: Option<&Actor>,
    ) -> Result<i64, StoreError> {
        let ForgetInHistory { key, type_id, before } = choice;
        let (mut forgotten, mut from, only_count) = (0, Some(0_i64), by.is_none());
        while let Some(block) = from {
            let mut transaction = self.begin_general().await?;
            transaction.set_timeout(TIMEOUT);
            let read = transaction
                .query_one(Statement::ForgetHistory, &[&part, key, type_id, before, &only_count, &block, &BLOCKS])
                .await;
            transaction.set_timeout(self.timeout);
            let row = read?;
            let jobs: i64 = row.get("jobs");
            if let Some(by) = by {
                let ids: Vec<i64> = row.get::<_, Option<Vec<i64>>>("ids").unwrap_or_default();
                let change = Change {
                    type_ids: row.get::<_, Option<Vec<TypeId>>>("types").unwrap_or_default(),
                    count: jobs,
                    ids: ids.iter().map(i64::to_string).collect(),
                    ..Change::default()
                };
                transaction.record(by, &change).await?;
            }
            transaction.commit().await?;
            forgotten += jobs;
            from = row.get("next_block");
        }
        Ok(forgotten)
    }

    /// Returns archived days that may have jobs of a task type (`None`: any type) which ended before a time.
    pub async fn forget_days(
        &self,
        task_type: Option<&str>,
        before: Option<SystemTime>,
    ) -> Result<Vec<ForgetDay>, StoreError> {
        self.general().await?.list(Statement::ForgetDays, &[&task_type, &before]).await
    }

    /// Returns the archive URL of a day, and the JSON manifest of its archive files.
    pub async fn archived_day_of(&self, day: &str) -> Result<Option<(String, String)>, StoreError> {
        self.general().await?.find(Statement::ArchivedDayOf, &[&day]).await
    }

    /// Reserves an archived day, in order to rewrite its archive files. `None` if another run has reserved the day.
    pub async fn take_rewrite(
        &self,
        day: &str,
        run: &str,
        who: &str,
        held: Duration,
    ) -> Result<Option<RewriteDay>, StoreError> {
        let held = held.as_millis() as i64;
        self.general().await?.find(Statement::TakeRewrite, &[&day, &run, &who, &held]).await
    }

    /// Records the manifest of the new files of a day. Writes an audit row with the number, first ids and task types of
    /// the deleted jobs. False if another run has reserved the day since.
    pub async fn note_rewrite(
        &self,
        day: &str,
        run: &str,
        manifest: &str,
        by: &Actor,
        (jobs, ids, types): (i64, Vec<i64>, Vec<&str>),
    ) -> Result<bool, StoreError> {
        let mut transaction = self.begin_general().await?;
        let ours = transaction.changes(Statement::NoteRewrite, &[&day, &run, &manifest]).await?;
        if ours {
            let ids = ids.iter().map(i64::to_string).collect();
            transaction.record(by, &Change { types, count: jobs, ids, ..Change::default() }).await?;
        }
        transaction.commit().await?;
        Ok(ours)
    }

    /// Replaces the archive files of a day by the rewritten files, for lookups. False if another run has reserved the
    /// day since.
    pub async fn rewritten_day(
        &self,
        day: &str,
        run: &str,
        manifest: &Manifest,
        text: &str,
    ) -> Result<bool, StoreError> {
        let (files, bytes) = (manifest.parts.len() as i32, manifest.bytes as i64);
        self.general()
            .await?
            .changes(Statement::RewrittenDay, &[&day, &run, &manifest.sums.rows, &files, &bytes, &text])
            .await
    }

    /// Ends the reservation of a day after its old archive files are deleted. False if another run has reserved the day
    /// since.
    pub async fn end_rewrite(&self, day: &str, run: &str) -> Result<bool, StoreError> {
        self.general().await?.changes(Statement::EndRewrite, &[&day, &run]).await
    }
}
