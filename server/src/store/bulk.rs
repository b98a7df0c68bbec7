//! Bulk operations: their rows, and the transactions that change their jobs.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio_postgres::Row;

use super::{
    Actor, CancelledJob, Picked, Reprioritized, Retried, RetryArgs, RetryStart, Statement, Store, StoreError, Wakeups,
    audit::Change,
    connection::Params,
    transaction::{Transaction, until_it_wins, until_unlocked},
};
use crate::job::{Bulk, BulkChange, BulkSpec, BulkState, Chosen, JobState, PagePosition, TaskTypeName, TypeId};

/// A bulk operation to start.
#[derive(Clone, Debug)]
pub struct NewBulk<'a> {
    /// The change and the jobs.
    pub spec: &'a BulkSpec,
    /// The type of the jobs.
    pub type_id: TypeId,
    /// The jobs that were counted, and whether there are more.
    pub selected: (i64, bool),
    /// The same key of the same caller starts nothing more.
    pub request_key: Option<&'a str>,
    /// The most bulk operations that have not ended.
    pub at_most: i64,
}

/// The jobs to pick for a bulk operation.
#[derive(Clone, Copy, Debug)]
pub struct PickBulk<'a> {
    /// Their type.
    pub type_id: TypeId,
    /// The change and the jobs.
    pub spec: &'a BulkSpec,
    /// Their state, and the position to start from.
    pub from: PagePosition,
    /// The most jobs.
    pub at_most: i32,
    /// No jobs after this one.
    pub last_id: i64,
    /// For changes of failed jobs: only those that failed before this time.
    pub before: SystemTime,
}

/// What a transaction of a bulk operation has changed.
#[derive(Debug)]
pub enum BulkChanged {
    /// Jobs that were retried or not, and jobs that wait for them again.
    Retried(Vec<Retried>, Vec<i64>),
    /// Jobs that have ended.
    Cancelled(Vec<CancelledJob>, Vec<Wakeups>),
    /// Dead jobs that were discarded.
    Discarded(Vec<i64>, Wakeups),
    /// Jobs with a new priority.
    Reprioritized(Vec<Reprioritized>),
    /// Jobs that were put back.
    Undone(Vec<i64>, Wakeups),
}

impl BulkChanged {
    /// The number of jobs that were changed.
    pub fn jobs(&self) -> usize {
        match self {
            Self::Retried(jobs, _) => jobs.iter().filter(|job| !job.key_held).count(),
            Self::Cancelled(jobs, _) => jobs.len(),
            Self::Discarded(jobs, _) | Self::Undone(jobs, _) => jobs.len(),
            Self::Reprioritized(jobs) => jobs.len(),
        }
    }
}

impl Store {
    /// Starts a bulk operation, or finds the one of the same request; returns its id.
    pub async fn start_bulk(&self, bulk: &NewBulk<'_>, by: &Actor) -> Result<i64, StoreError> {
        until_unlocked(self, |store| async move { store.start_bulk_once(bulk, by).await }).await
    }

    async fn start_bulk_once(&self, bulk: &NewBulk<'_>, by: &Actor) -> Result<i64, StoreError> {
        let NewBulk { spec, type_id, selected: (selected, has_more), request_key, at_most } = bulk;
        let BulkSpec { change, task_type, state, error_group, jobs_per_s } = spec;
        let (operation, state, peer) =
            (change.name(), state.map(JobState::name), by.peer.as_deref().unwrap_or_default());
        let (name, priority, principal) = (task_type.as_str(), change.priority(), by.name());
        let params: Params<'_> = &[
            &operation,
            type_id,
            &name,
            &state,
            error_group,
            &priority,
            jobs_per_s,
            selected,
            has_more,
            &principal,
            &peer,
            &by.reason,
            request_key,
            at_most,
            &change.undoes(),
        ];
        let mut transaction = self.begin_general().await?;
        let rows = transaction.query(Statement::StartBulk, params).await?;
        let Some(row) = rows.first() else {
            let problem =
                format!("{at_most} bulk operations are running or paused; wait until one ends, or cancel one");
            return Err(StoreError::TooMany(problem));
        };
        let id: i64 = row.get("id");
        if row.get::<_, bool>("is_new") {
            transaction.record(by, &Change::of_name(&id.to_string(), name)).await?;
        }
        transaction.commit().await?;
        Ok(id)
    }

    /// Takes a bulk operation that is due.
    pub async fn claim_bulk(&self, broker_id: i32) -> Result<Option<Bulk>, StoreError> {
        let rows = self.general().await?.query(Statement::ClaimBulk, &[&broker_id]).await?;
        rows.first().map(bulk).transpose()
    }

    /// When a bulk operation that this broker may take is due.
    pub async fn next_bulk(&self, broker_id: i32) -> Result<Option<Duration>, StoreError> {
        let row = self.general().await?.query_one(Statement::NextBulk, &[&broker_id]).await?;
        let in_ms: Option<i64> = row.get("in_ms");
        Ok(in_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or_default())))
    }

    /// Changes those of these jobs that are in this state, and counts them, in one transaction. `None`: the bulk operation does not run, or another broker
    /// has it, and nothing was changed.
    pub async fn change_in_bulk(
        &self,
        bulk: &Bulk,
        broker_id: i32,
        jobs: (JobState, &[i64]),
        by: &Actor,
    ) -> Result<Option<BulkChanged>, StoreError> {
        until_it_wins(|| self.change_in_bulk_once(bulk, broker_id, jobs, by)).await
    }

    async fn change_in_bulk_once(
        &self,
        bulk: &Bulk,
        broker_id: i32,
        (state, ids): (JobState, &[i64]),
        by: &Actor,
    ) -> Result<Option<BulkChanged>, StoreError> {
        let mut transaction = self.begin().await?;
        if transaction.query(Statement::LockBulk, &[&bulk.id, &broker_id]).await?.is_empty() {
            transaction.commit().await?;
            return Ok(None);
        }
        let jobs = Chosen { ids: ids.to_vec(), types: Some(Arc::from([bulk.type_id])) };
        let (changed, skipped, problem) = match bulk.spec.change {
            BulkChange::Retry => {
                let args = RetryArgs { start: RetryStart::Now, state: Some(state), payload: None, failed: true };
                let (retried, revived) = transaction.retry_jobs(&jobs, &args, by).await?;
                counted(ids, BulkChanged::Retried(retried, revived))
            }
            BulkChange::Cancel => transaction.cancel_in_bulk(bulk, state, ids, by).await?,
            BulkChange::Discard => {
                let noted = transaction.note_in_bulk(bulk, state, ids).await?;
                let (discarded, wakeups) = transaction.discard_jobs(&jobs.but(noted), by).await?;
                counted(ids, BulkChanged::Discarded(discarded, wakeups))
            }
            BulkChange::Reprioritize(priority) => {
                counted(ids, BulkChanged::Reprioritized(transaction.reprioritize(&jobs, priority, by).await?))
            }
            BulkChange::Undo(id) => transaction.undo_bulk(id, bulk.type_id, ids, by).await?,
        };
        transaction.add_to_bulk(bulk.id, changed.jobs() as i64, skipped as i64, 0, &problem).await?;
        transaction.commit().await?;
        Ok(Some(changed))
    }

    /// Counts a job that could not be changed.
    pub async fn fail_in_bulk(&self, id: i64, problem: &str) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        transaction.add_to_bulk(id, 0, 0, 1, problem).await?;
        transaction.commit().await
    }

    /// Moves the position of a bulk operation; `None`: the round is over. Returns its state, unless another broker has it.
    pub async fn advance_bulk(
        &self,
        bulk: &Bulk,
        broker_id: i32,
        next: Option<PagePosition>,
        pause: Duration,
        rounds: i32,
    ) -> Result<Option<BulkState>, StoreError> {
        let state = next.map(|position| position.state.name());
        let (rank, id) = next.map_or((i64::MIN, i64::MIN), |position| (position.rank, position.id));
        // What was retried or discarded does not come back into the selection.
        let (moves, pause_ms) = (!bulk.spec.change.is_of_failed(), pause.as_millis() as i64);
        let params: Params<'_> = &[&bulk.id, &broker_id, &state, &rank, &id, &pause_ms, &rounds, &moves];
        let rows = self.hot().await?.query(Statement::AdvanceBulk, params).await?;
        Ok(rows.first().and_then(|row| BulkState::from_name(row.get("state"))))
    }

    /// Pauses, resumes or cancels a bulk operation in one of these states; whether there was one.
    pub async fn change_bulk(
        &self,
        bulk: &Bulk,
        to: BulkState,
        from: &[BulkState],
        by: &Actor,
    ) -> Result<bool, StoreError> {
        until_unlocked(self, |store| async move {
            let from: Vec<&str> = from.iter().map(|state| state.name()).collect();
            let mut transaction = store.begin().await?;
            let rows = transaction.query(Statement::ChangeBulk, &[&bulk.id, &to.name(), &from]).await?;
            if !rows.is_empty() {
                let change = Change::of_name(&bulk.id.to_string(), bulk.spec.task_type.as_str());
                transaction.record(by, &change).await?;
            }
            transaction.commit().await?;
            Ok(!rows.is_empty())
        })
        .await
    }

    /// A bulk operation by id.
    pub async fn get_bulk(&self, id: i64) -> Result<Option<Bulk>, StoreError> {
        let rows = self.general().await?.query(Statement::GetBulk, &[&id]).await?;
        rows.first().map(bulk).transpose()
    }

    /// Bulk operations before this id, the newest first.
    pub async fn list_bulks(
        &self,
        before: i64,
        task_type: Option<&str>,
        open_only: bool,
        at_most: i32,
    ) -> Result<Vec<Bulk>, StoreError> {
        let mut connection = self.general().await?;
        let rows = connection.query(Statement::ListBulks, &[&before, &task_type, &open_only, &at_most]).await?;
        rows.iter().map(bulk).collect()
    }

    /// Deletes bulk operations that ended this many days ago, and of the others that ended all but so many.
    pub async fn delete_old_bulks(&self, days: i32, at_most: i64) -> Result<(), StoreError> {
        self.general().await?.query(Statement::DeleteOldBulks, &[&days, &at_most]).await.map(drop)
    }

    /// Ids of jobs of a bulk operation, from a position on.
    pub async fn pick_for_bulk(&self, pick: &PickBulk<'_>) -> Result<Picked, StoreError> {
        let PickBulk { type_id, spec, from, at_most, last_id, before } = pick;
        let (priority, group) = (spec.change.priority(), spec.error_group.as_deref());
        let (before, undoes) = (spec.change.is_of_failed().then_some(before), spec.change.undoes());
        let by_id: Params<'_> = &[type_id, &from.id, at_most, last_id, &priority];
        let (statement, params): (_, Params<'_>) = match from.state {
            JobState::Ready => {
                (Statement::PickReadyForBulk, &[type_id, &from.rank, &from.id, at_most, last_id, &priority])
            }
            JobState::Leased => (Statement::PickLeasedForBulk, by_id),
            JobState::Waiting => (Statement::PickWaitingForBulk, by_id),
            JobState::Scheduled => {
                (Statement::PickScheduledForBulk, &[type_id, &from.id, at_most, last_id, &priority, &group, &before])
            }
            JobState::Dead if group.is_some() => {
                (Statement::PickDeadGroupForBulk, &[type_id, &from.id, at_most, last_id, &before, &group])
            }
            JobState::Dead => (Statement::PickDeadForBulk, &[type_id, &from.id, at_most, last_id, &before]),
            JobState::Cancelled => (Statement::PickChangesForBulk, &[&undoes, &from.id, at_most]),
            finished => return Err(StoreError::Refused(format!("{} jobs are never picked", finished.name()).into())),
        };
        let rows = self.general().await?.query(statement, params).await?;
        Ok(Picked::of(&rows, from.state, *at_most))
    }
}

/// What has changed of these jobs, how many have not, and no reason.
fn counted(ids: &[i64], changed: BulkChanged) -> (BulkChanged, usize, String) {
    let skipped = ids.len().saturating_sub(changed.jobs());
    (changed, skipped, String::new())
}

impl Transaction<'_> {
    /// Locks those of these jobs that are in this state, and writes them to the journal; returns their ids.
    async fn note_in_bulk(&mut self, bulk: &Bulk, state: JobState, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
        let rows = self.query(Statement::NoteInBulk, &[&bulk.id, &ids, &bulk.type_id, &state.name()]).await?;
        Ok(rows.iter().map(|row| row.get("job_id")).collect())
    }

    /// Cancels jobs in this state. Jobs that run after them come first, if the bulk operation would cancel them too.
    async fn cancel_in_bulk(
        &mut self,
        bulk: &Bulk,
        state: JobState,
        ids: &[i64],
        by: &Actor,
    ) -> Result<(BulkChanged, usize, String), StoreError> {
        let mut dependents = Vec::new();
        if bulk.spec.states().contains(&JobState::Waiting) {
            let params: Params<'_> = &[&ids, &bulk.type_id, &bulk.last_job_id];
            let rows = self.query(Statement::DependentsForBulk, params).await?;
            dependents = rows.iter().map(|row| row.get("id")).collect();
        }
        let (mut cancelled, mut woken, mut found) = (Vec::new(), Vec::new(), 0);
        for (state, ids) in [(JobState::Waiting, &*dependents), (state, ids)] {
            let noted = if ids.is_empty() { Vec::new() } else { self.note_in_bulk(bulk, state, ids).await? };
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

    /// Puts back what a bulk operation has ended. Returns also how many jobs could not be put back, and why not the last.
    async fn undo_bulk(
        &mut self,
        id: i64,
        type_id: TypeId,
        ids: &[i64],
        by: &Actor,
    ) -> Result<(BulkChanged, usize, String), StoreError> {
        let (mut wakeups, mut back, mut problem) = (Wakeups::default(), Vec::new(), String::new());
        for row in self.query(Statement::UndoBulk, &[&id, &type_id, &ids]).await? {
            if wakeups.add(&row) {
                continue;
            }
            let job: i64 = row.get("id");
            match row.get::<_, Option<&str>>("problem") {
                None => back.push(job),
                Some(why) => problem = format!("job {job} was not put back: {why}"),
            }
        }
        self.record(by, &Change::of_jobs(back.iter().map(|job| (*job, type_id)))).await?;
        let skipped = ids.len().saturating_sub(back.len());
        Ok((BulkChanged::Undone(back, wakeups), skipped, problem))
    }

    async fn add_to_bulk(
        &mut self,
        id: i64,
        done: i64,
        skipped: i64,
        failed: i64,
        problem: &str,
    ) -> Result<(), StoreError> {
        self.query(Statement::AddToBulk, &[&id, &done, &skipped, &failed, &problem]).await.map(drop)
    }
}

fn bulk(row: &Row) -> Result<Bulk, StoreError> {
    // Anybody with SQL access may have written anything.
    let bad = |what: &str| StoreError::Refused(format!("a row of howdah.bulk has no valid {what}").into());
    let change = BulkChange::from_name(row.get("operation"), row.get("priority"), row.get("undo_bulk_id"))
        .ok_or_else(|| bad("operation"))?;
    let state_of = |name: Option<&str>| match name {
        None => Ok(None),
        Some(name) => JobState::from_name(name).map(Some).ok_or_else(|| bad("state of jobs")),
    };
    let at = state_of(row.get("at_state"))?;
    Ok(Bulk {
        id: row.get("id"),
        spec: BulkSpec {
            change,
            task_type: TaskTypeName::parse(row.get("task_type")).map_err(|_| bad("task type"))?,
            state: state_of(row.get("job_state"))?,
            error_group: row.get("error_group"),
            jobs_per_s: row.get("jobs_per_s"),
        },
        type_id: row.get("type_id"),
        last_job_id: row.get("last_job_id"),
        state: BulkState::from_name(row.get("state")).ok_or_else(|| bad("state"))?,
        at: at.map(|state| PagePosition { state, rank: row.get("at_rank"), id: row.get("at_id") }),
        done: row.get("done"),
        skipped: row.get("skipped"),
        failed: row.get("failed"),
        selected: row.get("selected"),
        has_more: row.get("has_more"),
        problem: row.get("problem"),
        principal: row.get("principal"),
        peer: row.get("peer"),
        reason: row.get("reason"),
        broker: row.try_get("broker").unwrap_or_default(),
        created: row.get("created"),
        updated: row.get("updated"),
        ended: row.get("ended"),
    })
}
