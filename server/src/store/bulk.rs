//! Bulk operations: their rows, and which jobs come next. `bulk_change` changes them.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use postgres_types::Json;
use tokio_postgres::Row;

use super::{
    Actor, Picked, Statement, Store, StoreError, audit::Change, connection::Params, transaction::until_unlocked,
};
use crate::job::{Bulk, BulkArgs, BulkChange, BulkSpec, BulkState, JobState, PagePosition, TaskTypeName, TypeId};

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
            &change.to_type().map(TaskTypeName::as_str),
            &change.fields().map(Json),
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
        let (moves, pause_ms) = (bulk.spec.change.looks_again(), pause.as_millis() as i64);
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
        let mut connection = self.general().await?;
        let rows = connection.query(statement, params).await?;
        let mut picked = Picked::of(&rows, from.state, *at_most);
        if let Some(fields) = spec.change.fields() {
            let params: Params<'_> = &[&picked.ids, type_id, &from.state.name(), &Json(fields)];
            let lacking = connection.query(Statement::LackingForBulk, params).await?;
            let lacking: HashSet<i64> = lacking.iter().map(|row| row.get("id")).collect();
            picked.ids.retain(|id| lacking.contains(id));
        }
        Ok(picked)
    }
}

fn bulk(row: &Row) -> Result<Bulk, StoreError> {
    // Anybody with SQL access may have written anything.
    let bad = |what: &str| StoreError::Refused(format!("a row of howdah.bulk has no valid {what}").into());
    let to_type: Option<&str> = row.get("to_type");
    let fields = row.try_get::<_, Option<Json<_>>>("fields").map_err(|_| bad("fields"))?;
    let args = BulkArgs {
        priority: row.get("priority"),
        undo: row.get("undo_bulk_id"),
        to_type: to_type.map(TaskTypeName::parse).transpose().map_err(|_| bad("task type to move to"))?,
        fields: fields.map(|Json(fields)| fields),
    };
    let change = BulkChange::from_name(row.get("operation"), args).ok_or_else(|| bad("operation"))?;
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
