//! Rows of bulk operations, and the choice of the next jobs. Module `bulk_change` changes the jobs.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use howdah_core::job::{Bulk, BulkArgs, BulkChange, BulkSpec, BulkState, JobState, PagePosition, TaskTypeName, TypeId};
use postgres_types::Json;
use tokio_postgres::Row;

use super::{
    Actor, Pick, Picked, Statement, Store, StoreError, audit::Change, connection::Params, pick::in_sql, rows::millis,
    transaction::retry_while_locked_in_side_lane,
};

/// A bulk operation to start.
#[derive(Clone, Debug)]
pub struct NewBulk<'a> {
    /// Change to make, and filter of the jobs.
    pub spec: &'a BulkSpec,
    /// Task type of the jobs.
    pub type_id: TypeId,
    /// Number of matching jobs that were counted, and whether the count stopped before the end.
    pub selected: (i64, bool),
    /// Idempotency key of the call: a second call with the same key, from the same caller, starts no second operation.
    pub request_key: Option<&'a str>,
    /// Maximum number of bulk operations that are running or paused, a quarter of them by one principal.
    pub at_most: i64,
}

/// Query for the next jobs of a bulk operation.
#[derive(Clone, Copy, Debug)]
pub struct PickBulk<'a> {
    /// Task type of the jobs.
    pub type_id: TypeId,
    /// Change to make, and filter of the jobs.
    pub spec: &'a BulkSpec,
    /// State of the jobs to scan, and position after which the scan continues.
    pub from: PagePosition,
    /// Maximum number of jobs.
    pub at_most: i32,
    /// Highest job id that existed when the operation started. Newer jobs are not changed.
    pub last_id: i64,
    /// For changes of failed jobs: only jobs that failed before this time.
    pub before: SystemTime,
}

impl Store {
    /// Starts a bulk operation, or finds the operation that the same request key started. Returns its id. Fails with
    /// `TooMany` if `at_most` operations have not ended.
    pub async fn start_bulk(&self, bulk: &NewBulk<'_>, by: &Actor) -> Result<i64, StoreError> {
        retry_while_locked_in_side_lane(self, |store| async move { store.start_bulk_once(bulk, by).await }).await
    }

    async fn start_bulk_once(&self, bulk: &NewBulk<'_>, by: &Actor) -> Result<i64, StoreError> {
        let NewBulk { spec, type_id, selected: (selected, has_more), request_key, at_most } = bulk;
        let BulkSpec { change, task_type, state, error_group, conditions, jobs_per_s } = spec;
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
            &in_sql(conditions),
        ];
        let mut transaction = self.begin_general().await?;
        let rows = transaction.query(Statement::StartBulk, params).await?;
        let Some(row) = rows.first() else {
            let problem = format!(
                "{at_most} bulk operations are running or paused, or a quarter of that by one principal; wait until one \
                 ends, or cancel one"
            );
            return Err(StoreError::TooMany(problem));
        };
        let id: i64 = row.get("id");
        if row.get::<_, bool>("is_new") {
            transaction.record(by, &Change::of_name(&id.to_string(), name)).await?;
        }
        transaction.commit().await?;
        Ok(id)
    }

    /// Makes this broker the owner of a due bulk operation that no other living broker owns. `None` if no such
    /// operation is due.
    pub async fn claim_bulk(&self, broker_id: i32) -> Result<Option<Bulk>, StoreError> {
        let rows = self.general().await?.query(Statement::ClaimBulk, &[&broker_id]).await?;
        rows.first().map(bulk).transpose()
    }

    /// Returns the time until the next bulk operation is due that this broker owns, or that no living broker owns.
    /// `None` if no such operation is running.
    pub async fn next_bulk(&self, broker_id: i32) -> Result<Option<Duration>, StoreError> {
        Ok(millis(&self.general().await?.query_one(Statement::NextBulk, &[&broker_id]).await?, "in_ms"))
    }

    /// Stores the position up to which a bulk operation has changed jobs. `next` is `None` if the scan has reached the
    /// last job. Returns the new state of the operation, or `None` if another broker owns the operation.
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
        let (moves, pause_ms) = (bulk.spec.change.repeats_rounds(), pause.as_millis() as i64);
        let params: Params<'_> = &[&bulk.id, &broker_id, &state, &rank, &id, &pause_ms, &rounds, &moves];
        let rows = self.hot().await?.query(Statement::AdvanceBulk, params).await?;
        Ok(rows.first().and_then(|row| BulkState::from_name(row.get("state"))))
    }

    /// Pauses, resumes or cancels a bulk operation that is in one of the states `from`. False if its state is another
    /// one.
    pub async fn change_bulk(
        &self,
        bulk: &Bulk,
        to: BulkState,
        from: &[BulkState],
        by: &Actor,
    ) -> Result<bool, StoreError> {
        retry_while_locked_in_side_lane(self, |store| async move {
            let from: Vec<&str> = from.iter().map(|state| state.name()).collect();
            let mut transaction = store.begin().await?;
            let is_changed = transaction.changes(Statement::ChangeBulk, &[&bulk.id, &to.name(), &from]).await?;
            if is_changed {
                let change = Change::of_name(&bulk.id.to_string(), bulk.spec.task_type.as_str());
                transaction.record(by, &change).await?;
            }
            transaction.commit().await?;
            Ok(is_changed)
        })
        .await
    }

    pub async fn get_bulk(&self, id: i64) -> Result<Option<Bulk>, StoreError> {
        let rows = self.general().await?.query(Statement::GetBulk, &[&id]).await?;
        rows.first().map(bulk).transpose()
    }

    /// Returns bulk operations with an id below `before`, newest first.
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

    /// Deletes bulk operations that ended more than `days` ago. Of the other ended operations, keeps at most `at_most`.
    pub async fn delete_old_bulks(&self, days: i32, at_most: i64) -> Result<(), StoreError> {
        self.general().await?.run(Statement::DeleteOldBulks, &[&days, &at_most]).await
    }

    /// Returns ids of the next jobs of a bulk operation, from a position on.
    pub async fn pick_for_bulk(&self, pick: &PickBulk<'_>) -> Result<Picked, StoreError> {
        let PickBulk { type_id, spec, from, at_most, last_id, before } = pick;
        if let Some(undoes) = spec.change.undoes() {
            let mut connection = self.general().await?;
            let rows = connection.query(Statement::PickChangesForBulk, &[&undoes, &from.id, at_most]).await?;
            return Ok(Picked::from_rows(&rows, from.state, *at_most));
        }
        let pick = Pick {
            type_id: *type_id,
            from: *from,
            at_most: *at_most,
            conditions: &spec.conditions,
            held: None,
            error_group: spec.error_group.as_deref(),
            failed: false,
            failed_before: spec.change.only_failed().then_some(*before),
            other_priority: spec.change.priority(),
            last_id: *last_id,
        };
        let mut picked = self.pick(&pick).await?;
        if let Some(fields) = spec.change.fields() {
            let params: Params<'_> = &[&picked.ids, type_id, &from.state.name(), &Json(fields)];
            let changeable: Vec<i64> = self.general().await?.list(Statement::ChangeableForBulk, params).await?;
            let changeable: HashSet<i64> = changeable.into_iter().collect();
            picked.ids.retain(|id| changeable.contains(id));
        }
        Ok(picked)
    }
}

fn bulk(row: &Row) -> Result<Bulk, StoreError> {
    // A role with SQL access may have written an invalid value, which is returned as an error.
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
    let conditions = row.try_get::<_, Option<Json<_>>>("conditions").map_err(|_| bad("conditions"))?;
    Ok(Bulk {
        id: row.get("id"),
        spec: BulkSpec {
            change,
            task_type: TaskTypeName::parse(row.get("task_type")).map_err(|_| bad("task type"))?,
            state: state_of(row.get("job_state"))?,
            error_group: row.get("error_group"),
            conditions: conditions.map(|Json(conditions)| conditions).unwrap_or_default(),
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
