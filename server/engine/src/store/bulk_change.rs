//! Transactions of bulk operations. Each transaction changes a batch of jobs and adds their number to the counters of
//! the operation.

use std::sync::Arc;

use howdah_core::job::{Bulk, BulkChange, Chosen, JobState, TaskTypeName, TypeId};
use postgres_types::Json;
use tokio_postgres::Row;

use super::{
    Actor, CancelledJob, Reprioritized, Retried, RetryArgs, RetryStart, Statement, Store, StoreError, Wakeups,
    audit::Change,
    connection::Params,
    pick::in_sql,
    transaction::{Transaction, retry_conflicts},
};

/// Result of one transaction of a bulk operation.
#[derive(Debug)]
pub enum BulkChanged {
    /// Result of the retry for each job, and ids of dependent jobs that wait for the retried jobs again.
    Retried(Vec<Retried>, Vec<i64>),
    /// Cancelled jobs.
    Cancelled(Vec<CancelledJob>, Vec<Wakeups>),
    /// Discarded dead jobs.
    Discarded(Vec<i64>, Wakeups),
    /// Jobs with a new priority.
    Reprioritized(Vec<Reprioritized>),
    /// Ids of jobs that were restored, moved to another type, or got new field values.
    Changed(Vec<i64>, Wakeups),
}

impl BulkChanged {
    /// Returns the number of changed jobs.
    pub fn jobs(&self) -> usize {
        match self {
            Self::Retried(jobs, _) => jobs.iter().filter(|job| !job.key_held).count(),
            Self::Cancelled(jobs, _) => jobs.len(),
            Self::Discarded(jobs, _) | Self::Changed(jobs, _) => jobs.len(),
            Self::Reprioritized(jobs) => jobs.len(),
        }
    }
}

impl Store {
    /// Applies a bulk operation to the given jobs that are still in the given state, and adds them to its counters, in
    /// one transaction. Changes nothing and returns `None` if the operation is not running, or another broker owns it.
    pub async fn change_in_bulk(
        &self,
        bulk: &Bulk,
        broker_id: i32,
        jobs: (JobState, &[i64]),
        by: &Actor,
    ) -> Result<Option<BulkChanged>, StoreError> {
        retry_conflicts(|| self.change_in_bulk_once(bulk, broker_id, jobs, by)).await
    }

    async fn change_in_bulk_once(
        &self,
        bulk: &Bulk,
        broker_id: i32,
        (state, ids): (JobState, &[i64]),
        by: &Actor,
    ) -> Result<Option<BulkChanged>, StoreError> {
        let mut transaction = self.begin().await?;
        if !transaction.changes(Statement::LockBulk, &[&bulk.id, &broker_id]).await? {
            transaction.commit().await?;
            return Ok(None);
        }
        let jobs = Chosen { ids: ids.to_vec(), types: Some(Arc::from([bulk.type_id])) };
        let (changed, skipped, problem) = match &bulk.spec.change {
            BulkChange::Retry => {
                let args = RetryArgs { start: RetryStart::Now, state: Some(state), payload: None, failed: true };
                let (retried, revived) = transaction.retry_jobs(&jobs, &args, by).await?;
                counted(ids, BulkChanged::Retried(retried, revived))
            }
            BulkChange::Cancel => transaction.cancel_in_bulk(bulk, state, ids, by).await?,
            BulkChange::Discard => {
                let noted = transaction.write_bulk_journal(bulk, state, ids).await?;
                let (discarded, wakeups) = transaction.discard_jobs(&jobs.but(noted), by).await?;
                counted(ids, BulkChanged::Discarded(discarded, wakeups))
            }
            BulkChange::Reprioritize(priority) => {
                counted(ids, BulkChanged::Reprioritized(transaction.reprioritize(&jobs, *priority, by).await?))
            }
            BulkChange::Undo(id) => transaction.undo_bulk(*id, bulk.type_id, ids, by).await?,
            BulkChange::Move(to) => transaction.move_jobs(bulk, (state, ids), to, by).await?,
            BulkChange::Set(fields) => {
                let params: Params<'_> = &[&ids, &state.name(), &bulk.type_id, &Json(fields)];
                let rows = transaction.query(Statement::SetInJobs, params).await?;
                let made = ChangeResult::from_rows(&rows, "changed");
                transaction.record(by, &Change::of_jobs(made.jobs.iter().map(|job| (*job, bulk.type_id)))).await?;
                made.counted(ids)
            }
        };
        transaction.add_to_bulk(bulk.id, changed.jobs() as i64, skipped as i64, 0, &problem).await?;
        transaction.commit().await?;
        Ok(Some(changed))
    }

    /// Adds one failed job, and the problem, to the counters of a bulk operation.
    pub async fn fail_in_bulk(&self, id: i64, problem: &str) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        transaction.add_to_bulk(id, 0, 0, 1, problem).await?;
        transaction.commit().await
    }
}

/// Returns `changed`, the number of jobs in `ids` that were not changed, and an empty reason, because retry, discard
/// and reprioritize give no reason.
fn counted(ids: &[i64], changed: BulkChanged) -> (BulkChanged, usize, String) {
    let skipped = ids.len().saturating_sub(changed.jobs());
    (changed, skipped, String::new())
}

impl Transaction<'_> {
    /// Locks the given jobs that are still in the given state, and writes them to the undo journal. Returns their ids.
    async fn write_bulk_journal(&mut self, bulk: &Bulk, state: JobState, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.list(Statement::WriteBulkJournal, &[&bulk.id, &ids, &bulk.type_id, &state.name()]).await
    }

    /// Cancels jobs in the given state. If the operation includes waiting jobs, dependent jobs of its type are
    /// cancelled first: the cancellation of their parent job would end them too, but without an entry in the undo
    /// journal.
    async fn cancel_in_bulk(
        &mut self,
        bulk: &Bulk,
        state: JobState,
        ids: &[i64],
        by: &Actor,
    ) -> Result<(BulkChanged, usize, String), StoreError> {
        let mut dependents = Vec::new();
        if bulk.spec.states().contains(&JobState::Waiting) {
            let params: Params<'_> = &[&ids, &bulk.type_id, &bulk.last_job_id, &in_sql(&bulk.spec.conditions)];
            dependents = self.list(Statement::DependentsForBulk, params).await?;
        }
        let (mut cancelled, mut woken, mut found) = (Vec::new(), Vec::new(), 0);
        for (state, ids) in [(JobState::Waiting, &*dependents), (state, ids)] {
            let noted = if ids.is_empty() { Vec::new() } else { self.write_bulk_journal(bulk, state, ids).await? };
            found = noted.len();
            if found > 0 {
                let jobs = Chosen { ids: noted, types: Some(Arc::from([bulk.type_id])) };
                let (gone, wakeups) = self.cancel(&jobs, Some(state), by).await?;
                cancelled.extend(gone);
                woken.push(wakeups);
            }
        }
        Ok((BulkChanged::Cancelled(cancelled, woken), ids.len().saturating_sub(found), String::new()))
    }

    /// Restores jobs that a bulk operation ended. Returns also the number of jobs that were not restored, and the
    /// reason why the last of them was not.
    async fn undo_bulk(
        &mut self,
        id: i64,
        type_id: TypeId,
        ids: &[i64],
        by: &Actor,
    ) -> Result<(BulkChanged, usize, String), StoreError> {
        let rows = self.query(Statement::UndoBulk, &[&id, &type_id, &ids]).await?;
        let made = ChangeResult::from_rows(&rows, "put back");
        self.record(by, &Change::of_jobs(made.jobs.iter().map(|job| (*job, type_id)))).await?;
        Ok(made.counted(ids))
    }

    /// Moves jobs in the given state to another task type. Returns also the number of jobs that were not moved, and the
    /// reason why the last of them was not.
    async fn move_jobs(
        &mut self,
        bulk: &Bulk,
        (state, ids): (JobState, &[i64]),
        to: &TaskTypeName,
        by: &Actor,
    ) -> Result<(BulkChanged, usize, String), StoreError> {
        let params: Params<'_> = &[&ids, &state.name(), &bulk.type_id, &to.as_str()];
        let rows = self.query(Statement::MoveJobs, params).await?;
        let made = ChangeResult::from_rows(&rows, "moved");
        let mut change = Change::of_jobs(made.jobs.iter().map(|job| (*job, bulk.type_id)));
        change.types.push(to.as_str());
        self.record(by, &change).await?;
        Ok(made.counted(ids))
    }

    async fn add_to_bulk(
        &mut self,
        id: i64,
        done: i64,
        skipped: i64,
        failed: i64,
        problem: &str,
    ) -> Result<(), StoreError> {
        self.run(Statement::AddToBulk, &[&id, &done, &skipped, &failed, &problem]).await
    }
}

/// Result of an SQL function that changes jobs one by one. Each row is a job with an optional reason, or a wake-up.
struct ChangeResult {
    jobs: Vec<i64>,
    wakeups: Wakeups,
    /// Reason why the last unchanged job was not changed.
    problem: String,
}

impl ChangeResult {
    /// Reads the rows of an SQL function that changes jobs. `done` is the past participle for the error text, such as
    /// "moved".
    fn from_rows(rows: &[Row], done: &str) -> Self {
        let mut made = Self { jobs: Vec::new(), wakeups: Wakeups::default(), problem: String::new() };
        for row in rows {
            if made.wakeups.add(row) {
                continue;
            }
            let job: i64 = row.get("id");
            match row.get::<_, Option<&str>>("problem") {
                None => made.jobs.push(job),
                Some(why) => made.problem = format!("job {job} was not {done}: {why}"),
            }
        }
        made
    }

    /// Returns the changed jobs, the number of unchanged jobs, and the reason why the last of the unchanged jobs was
    /// not changed.
    fn counted(self, ids: &[i64]) -> (BulkChanged, usize, String) {
        let skipped = ids.len().saturating_sub(self.jobs.len());
        (BulkChanged::Changed(self.jobs, self.wakeups), skipped, self.problem)
    }
}
