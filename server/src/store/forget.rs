//! Finished jobs that are forgotten before their time: in the database, and in the files of the archive.

use std::time::{Duration, SystemTime};

use howdah_archive::Manifest;

use super::{Actor, Statement, Store, StoreError, audit::Change};
use crate::job::TypeId;

/// How long one transaction may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The blocks of a partition that are looked at together: 8 MiB when jobs are deleted.
const BLOCKS: i64 = 1_024;

/// Which jobs of the database are forgotten: those that all of it fits.
#[derive(Clone, Debug, Default)]
pub struct ForgetInHistory {
    /// With this key.
    pub key: Option<String>,
    /// Of this type.
    pub type_id: Option<TypeId>,
    /// That ended before this time.
    pub before: Option<SystemTime>,
}

/// A day of the archive that may have jobs which are to be forgotten.
#[derive(Clone, Debug)]
pub struct ForgetDay {
    /// As `2026-11-22`.
    pub day: String,
    /// Somebody works on it.
    pub is_busy: bool,
    /// New files of it are written already, and nothing else.
    pub is_rewritten: bool,
}

/// A day whose files are written anew by a run.
#[derive(Clone, Debug)]
pub struct RewriteDay {
    /// Where it lies.
    pub url: String,
    /// What it consists of, as JSON.
    pub manifest: String,
    /// What it is to consist of, as JSON; empty: an earlier run has not come so far.
    pub rewrite: String,
}

impl Store {
    /// Partitions of history that may have jobs which ended before a time.
    pub async fn history_parts(&self, before: Option<SystemTime>) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::HistoryParts, &[&before]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Deletes the chosen jobs of a partition, in small transactions, or only counts them (`by` is `None`); says how many.
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
            transaction.connection().set_timeout(TIMEOUT);
            let read = transaction
                .query_one(Statement::ForgetHistory, &[&part, key, type_id, before, &only_count, &block, &BLOCKS])
                .await;
            transaction.connection().set_timeout(self.timeout);
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

    /// Days of the archive that may have jobs of a type (`None`: any) which ended before a time.
    pub async fn forget_days(
        &self,
        task_type: Option<&str>,
        before: Option<SystemTime>,
    ) -> Result<Vec<ForgetDay>, StoreError> {
        let rows = self.general().await?.query(Statement::ForgetDays, &[&task_type, &before]).await?;
        let day = |row: &tokio_postgres::Row| ForgetDay {
            day: row.get("day"),
            is_busy: row.get("is_busy"),
            is_rewritten: row.get("is_rewritten"),
        };
        Ok(rows.iter().map(day).collect())
    }

    /// Where an archived day lies, and its manifest as JSON.
    pub async fn archived_day_of(&self, day: &str) -> Result<Option<(String, String)>, StoreError> {
        let rows = self.general().await?.query(Statement::ArchivedDayOf, &[&day]).await?;
        Ok(rows.first().map(|row| (row.get("url"), row.get("manifest"))))
    }

    /// Takes a day to write its files anew; `None`: somebody else has it.
    pub async fn take_rewrite(
        &self,
        day: &str,
        run: &str,
        who: &str,
        held: Duration,
    ) -> Result<Option<RewriteDay>, StoreError> {
        let held = held.as_millis() as i64;
        let rows = self.general().await?.query(Statement::TakeRewrite, &[&day, &run, &who, &held]).await?;
        Ok(rows.first().map(|row| RewriteDay {
            url: row.get("url"),
            manifest: row.get("manifest"),
            rewrite: row.get("rewrite"),
        }))
    }

    /// Decides on the new files of a day, and records it; false: another run has the day. `forgotten` is the number of the jobs that
    /// are not in them, the first ids, and their types.
    pub async fn note_rewrite(
        &self,
        day: &str,
        run: &str,
        manifest: &str,
        by: &Actor,
        (jobs, ids, types): (i64, Vec<i64>, Vec<&str>),
    ) -> Result<bool, StoreError> {
        let mut transaction = self.begin_general().await?;
        let ours = !transaction.query(Statement::NoteRewrite, &[&day, &run, &manifest]).await?.is_empty();
        if ours {
            let ids = ids.iter().map(i64::to_string).collect();
            transaction.record(by, &Change { types, count: jobs, ids, ..Change::default() }).await?;
        }
        transaction.commit().await?;
        Ok(ours)
    }

    /// Puts the new files of a day in the place of the old ones; false: another run has the day.
    pub async fn rewritten_day(
        &self,
        day: &str,
        run: &str,
        manifest: &Manifest,
        text: &str,
    ) -> Result<bool, StoreError> {
        let (files, bytes) = (manifest.parts.len() as i32, manifest.bytes as i64);
        let rows = self
            .general()
            .await?
            .query(Statement::RewrittenDay, &[&day, &run, &manifest.sums.rows, &files, &bytes, &text])
            .await?;
        Ok(!rows.is_empty())
    }

    /// Frees a day: its old files are gone.
    pub async fn end_rewrite(&self, day: &str, run: &str) -> Result<bool, StoreError> {
        Ok(!self.general().await?.query(Statement::EndRewrite, &[&day, &run]).await?.is_empty())
    }
}
