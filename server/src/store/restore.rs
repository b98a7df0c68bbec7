//! Archived jobs, enqueued again as new ones.

use howdah_archive::Row;

use super::{Actor, Statement, Store, StoreError, audit::Change};

/// The most task types that the audit names.
const NAMED: usize = 10;

/// What has become of a job that was to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It is there as a new job.
    Restored,
    /// It was restored in the last 24 hours, by an earlier call, or another of its ends was.
    Earlier,
    /// A job that has not finished holds its key: that one is kept.
    KeyHeld,
    /// The job itself has come back, and has not finished.
    Unfinished,
}

/// A job that was to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredJob {
    /// Its id in the archive.
    pub old_id: i64,
    /// The new job, or the one that is in its way.
    pub id: i64,
    /// What has become of it.
    pub outcome: RestoreOutcome,
}

impl Store {
    /// Enqueues copies of these jobs, which have their payloads, all or none.
    pub async fn restore_jobs(&self, jobs: &[Row], by: &Actor) -> Result<Vec<RestoredJob>, StoreError> {
        fn column<'a, T>(jobs: &'a [Row], value: impl Fn(&'a Row) -> T) -> Vec<T> {
            jobs.iter().map(value).collect()
        }
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let ids = column(jobs, |job| job.id);
        let types = column(jobs, |job| job.task_type.as_str());
        let payloads = column(jobs, |job| job.payload.as_deref().unwrap_or_default());
        let headers = column(jobs, |job| job.headers.as_deref());
        let options = column(jobs, |job| job.options.as_deref());
        let priorities = column(jobs, |job| job.priority);
        let attempts = column(jobs, |job| job.max_attempts);
        let keys = column(jobs, |job| job.key.as_deref());
        let mut transaction = self.begin_general().await?;
        let rows = transaction
            .query(
                Statement::RestoreJobs,
                &[&ids, &types, &payloads, &headers, &options, &priorities, &attempts, &keys],
            )
            .await?;
        let done: Vec<RestoredJob> = rows
            .iter()
            .map(|row| RestoredJob {
                old_id: row.get("old_id"),
                id: row.get("id"),
                outcome: match row.get("outcome") {
                    "repeated" => RestoreOutcome::Earlier,
                    "kept" => RestoreOutcome::KeyHeld,
                    "unfinished" => RestoreOutcome::Unfinished,
                    _ => RestoreOutcome::Restored,
                },
            })
            .collect();
        let made: Vec<(&RestoredJob, &Row)> =
            done.iter().zip(jobs).filter(|(done, _)| done.outcome == RestoreOutcome::Restored).collect();
        let new_ids: Vec<String> = made.iter().map(|(done, _)| done.id.to_string()).collect();
        let mut change = Change::of_ids(&new_ids);
        for (_, job) in made {
            if change.types.len() < NAMED && !change.types.contains(&job.task_type.as_str()) {
                change.types.push(&job.task_type);
            }
        }
        transaction.record(by, &change).await?;
        transaction.commit().await?;
        Ok(done)
    }
}
