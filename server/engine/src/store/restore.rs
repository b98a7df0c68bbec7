//! Restores archived jobs by enqueueing copies of them.

use howdah_archive::Row;

use super::{Actor, Statement, Store, StoreError, audit::Change, connection::Params, rows::from_row};

/// Maximum number of task types that the audit row of a restore names.
const NAMED: usize = 10;

/// Outcome of restoring one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// A copy was enqueued.
    Restored,
    /// Not restored, because an earlier call within the last 24 hours has restored this job.
    Earlier,
    /// Not restored, because an unfinished job holds the key of the archived job.
    KeyHeld,
    /// Not restored, because the job with the archived id still exists and is unfinished.
    Unfinished,
}

/// Result of restoring one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredJob {
    /// Job id in the archive.
    pub old_id: i64,
    /// Id of the enqueued copy, or of the existing job because of which no copy was enqueued.
    pub id: i64,
    pub outcome: RestoreOutcome,
}

from_row! { RestoredJob(row) { old_id, id, outcome: RestoreOutcome::from_name(row.get("outcome")) } }

impl RestoreOutcome {
    fn from_name(name: &str) -> Self {
        match name {
            "repeated" => Self::Earlier,
            "kept" => Self::KeyHeld,
            "unfinished" => Self::Unfinished,
            _ => Self::Restored,
        }
    }
}

impl Store {
    /// Enqueues copies of the given archived jobs, which must have payloads, in one transaction.
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
        let params: Params<'_> = &[&ids, &types, &payloads, &headers, &options, &priorities, &attempts, &keys];
        let done: Vec<RestoredJob> = transaction.list(Statement::RestoreJobs, params).await?;
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
