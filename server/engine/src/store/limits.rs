//! Limits on the running jobs of a task type or of a limit key.

use std::time::{Duration, SystemTime};

use howdah_core::job::{Braked, TypeId, TypeLimits};
use postgres_types::Json;
use serde_json::Value;
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::{Change, SettingsBefore},
    rows::{self, from_row, micros, millis},
    transaction::{Transaction, retry_while_locked_in_side_lane},
};

/// Quota of a task type with a limit.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub type_id: TypeId,
    /// Number of jobs that may be claimed now.
    pub allowed: i32,
    /// Time until more jobs may be claimed. `None` if a running job must end first.
    pub retry_in: Option<Duration>,
    /// Whether another transaction has locked the row of the limit, so that the quota is 0 for now.
    pub is_locked: bool,
}

from_row! {
    Quota(row) {
        type_id, allowed, retry_in: millis(row, "retry_in_ms").map(|time| time.max(Duration::from_millis(1))), is_locked,
    }
}

/// A limit key, for operators.
#[derive(Clone, Debug)]
pub struct LimitKeyView {
    pub key: String,
    /// Number of jobs that wait for the limits of the key, at most 1,000.
    pub waiting: i64,
    /// Number of jobs that are ready or leased.
    pub running: i64,
    /// End of the pause. `None` if the limit key is not paused, or is paused until an operator resumes it.
    pub paused_until: Option<SystemTime>,
    /// Whether the limit key is paused.
    pub paused: bool,
    /// Own limit on the running jobs of the limit key. `None`: the limit of the task type applies.
    pub max_running: Option<i32>,
}

from_row! {
    LimitKeyView(row) { key: row.get("limit_key"), waiting, running, paused_until, paused, max_running }
}

/// A brake that has started or ended.
#[derive(Clone, Copy, Debug)]
pub struct BrakeChange {
    pub type_id: TypeId,
    /// Number of failed attempts in a row.
    pub failures: i64,
    /// Start of the brake.
    pub since: SystemTime,
    /// Whether the type is braked now.
    pub is_braked: bool,
}

from_row! { BrakeChange(row) { type_id, failures, since, is_braked } }

/// Reads the state of a brake from the columns `braked_since`, `braked_failures` and `braked_next`.
pub(super) fn braked(row: &Row) -> Option<Braked> {
    let since = row.get::<_, Option<_>>("braked_since")?;
    Some(Braked { since, failures: row.get("braked_failures"), next: row.get("braked_next") })
}

impl Transaction<'_> {
    /// Returns how many jobs of these task types may be claimed. Locks the rows of the limits until this transaction
    /// ends. Meanwhile, other transactions get a quota of 0 for these types.
    pub(super) async fn quotas(&mut self, types: &[TypeId], wanted: &[i32]) -> Result<Vec<Quota>, StoreError> {
        self.list(Statement::TypeQuota, &[&types, &wanted]).await
    }

    /// Moves nacked jobs (rows of `settle_nack.sql`) to waiting if they need a new slot of their limit key. Returns the
    /// ids of the moved jobs, and whether limit keys must be checked. Must run after `after_end`, because all
    /// transactions lock limit states last, to avoid deadlocks.
    pub(super) async fn requeue_for_limit(&mut self, rows: &[Row]) -> Result<(Vec<i64>, bool), StoreError> {
        let (mut ids, mut types, mut options, mut leased) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let coordinated: Option<Json<Value>> = row.get("coordinated_options");
            if let Some(of_job) = coordinated.filter(|Json(options)| options.get("limit_key").is_some()) {
                ids.push(row.get::<_, i64>("id"));
                types.push(row.get::<_, TypeId>("left_type"));
                options.push(of_job);
                leased.push(row.get::<_, Option<SystemTime>>("coordinated_leased_at"));
            }
        }
        if ids.is_empty() {
            return Ok((ids, false));
        }
        let held = self.query(Statement::RequeueForLimit, &[&ids, &types, &options, &leased]).await?;
        Ok((held.iter().filter_map(|row| row.get("id")).collect(), !held.is_empty()))
    }

    /// Counts claimed jobs against the rate limits of their task types.
    pub(super) async fn spend(&mut self, types: &[TypeId], jobs: &[i32]) -> Result<(), StoreError> {
        self.run(Statement::SpendTokens, &[&types, &jobs]).await
    }

    /// Replaces the limits of a task type. Ready jobs that the new limits hold back must become waiting: this function
    /// moves the first ones, and `continue_limit_changes` the others.
    pub(super) async fn set_limits(&mut self, name: &str, limits: &TypeLimits) -> Result<(), StoreError> {
        self.run(Statement::ReplaceLimits, &[&name, &Json(limits)]).await
    }
}

impl Store {
    /// Applies changed limits to at most `at_most` keys and jobs. Returns the time until the next step is due.
    pub async fn continue_limit_changes(&self, at_most: i32) -> Result<Option<Duration>, StoreError> {
        let row = self.hot().await?.query_one(Statement::ContinueLimitChanges, &[&at_most]).await?;
        Ok(micros(&row, "next_in_us"))
    }

    /// Counts ended attempts for the brakes of task types: the type, whether an attempt succeeded, and the number of
    /// attempts that failed after it. Returns the brakes that have started or ended, and the types that were not counted,
    /// because another transaction has locked their brakes.
    pub async fn count_for_brakes(
        &self,
        types: &[TypeId],
        succeeded: &[bool],
        failed: &[i64],
    ) -> Result<(Vec<BrakeChange>, Vec<TypeId>), StoreError> {
        let rows = self.hot().await?.query(Statement::CountForBrakes, &[&types, &succeeded, &failed]).await?;
        let (locked, changed): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.get("is_locked"));
        Ok((rows::all(&changed), locked.iter().map(|row| row.get("type_id")).collect()))
    }

    /// Pauses a limit key, indefinitely if there is no duration.
    pub async fn pause_limit_key(
        &self,
        type_id: TypeId,
        key: &str,
        duration: Option<Duration>,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let ms = duration.map_or(-1, |duration| duration.as_millis() as i64);
        self.set_pause(type_id, key, Some(ms), by).await
    }

    /// Ends the pause of a limit key.
    pub async fn resume_limit_key(&self, type_id: TypeId, key: &str, by: &Actor) -> Result<(), StoreError> {
        self.set_pause(type_id, key, None, by).await
    }

    async fn set_pause(&self, type_id: TypeId, key: &str, ms: Option<i64>, by: &Actor) -> Result<(), StoreError> {
        let change = Change { type_ids: vec![type_id], count: 1, ids: vec![key.to_owned()], ..Change::default() };
        let pause = |store: Store| {
            let change = &change;
            async move {
                let mut transaction = store.begin().await?;
                transaction.query(Statement::PauseLimitKey, &[&type_id, &key, &ms]).await?;
                transaction.record(by, change).await?;
                transaction.commit().await
            }
        };
        retry_while_locked_in_side_lane(self, pause).await
    }

    /// Sets the own limit of a limit key of the task type `name`. `None` removes it.
    pub async fn limit_key(
        &self,
        type_id: TypeId,
        name: &str,
        key: &str,
        max_running: Option<i32>,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let set = |store: Store| async move {
            let mut transaction = store.begin().await?;
            transaction.query(Statement::LockSettings, &[]).await?;
            let of = format!("{name} {key}");
            let before = SettingsBefore::read(&mut transaction, SettingsBefore::LIMIT_KEY, &of).await?;
            transaction.query(Statement::ReplaceKeyLimit, &[&type_id, &key, &max_running]).await?;
            let change = Change { before: Some(before), ..Change::of_name(key, name) };
            transaction.record(by, &change).await?;
            transaction.commit().await
        };
        retry_while_locked_in_side_lane(self, set).await
    }

    /// Returns the limit keys of a task type that have waiting jobs, are paused, or have their own limit, from after the
    /// given key on.
    pub async fn list_limit_keys(
        &self,
        type_id: TypeId,
        after: &str,
        at_most: i32,
    ) -> Result<Vec<LimitKeyView>, StoreError> {
        Ok(rows::all(&self.read(Statement::ListLimitKeys, &[&type_id, &after, &at_most]).await?))
    }

    /// Deletes rows that are no longer needed: states of limit keys and fair keys, held job keys, and revocations of
    /// JSON Web Tokens.
    pub async fn delete_idle_limit_states(&self) -> Result<(), StoreError> {
        self.general().await?.run(Statement::DeleteIdleLimitStates, &[]).await
    }
}
