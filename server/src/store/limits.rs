//! Limits: how many jobs of a type or a limit key may run.

use std::time::{Duration, SystemTime};

use postgres_types::Json;
use serde_json::Value;
use tokio_postgres::Row;

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    transaction::{Transaction, until_unlocked},
};
use crate::job::{TypeId, TypeLimits};

/// The quota of a type with a limit.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// The type.
    pub type_id: TypeId,
    /// Jobs that may be claimed.
    pub allowed: i32,
    /// When more will be allowed, if that is known.
    pub retry_in: Option<Duration>,
    /// Another transaction has locked its limit.
    pub is_locked: bool,
}

/// A limit key as an operator sees it.
#[derive(Clone, Debug)]
pub struct LimitKeyView {
    /// The key.
    pub key: String,
    /// The number of jobs that wait for its limits, at most 1,000.
    pub waiting: i64,
    /// The number of jobs that are ready or leased.
    pub running: i64,
    /// When its pause ends, if that is known.
    pub paused_until: Option<SystemTime>,
    /// Whether it is paused.
    pub paused: bool,
}

impl Transaction<'_> {
    /// How many jobs of these types may be claimed. No other transaction is allowed any until this one ends.
    pub(super) async fn quotas(&mut self, types: &[TypeId], wanted: &[i32]) -> Result<Vec<Quota>, StoreError> {
        let rows = self.query(Statement::TypeQuota, &[&types, &wanted]).await?;
        Ok(rows
            .iter()
            .map(|row| Quota {
                type_id: row.get("type_id"),
                allowed: row.get("allowed"),
                retry_in: row.get::<_, Option<i64>>("retry_in_ms").map(|ms| Duration::from_millis(ms.max(1) as u64)),
                is_locked: row.get("is_locked"),
            })
            .collect())
    }

    /// From rows of `settle_nack.sql`: jobs that are ready again and must wait for their limit keys. Returns whether
    /// keys are to be checked. It comes after `after_end`, because limit states are locked last.
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

    /// Records that this many jobs of these types were claimed.
    pub(super) async fn spend(&mut self, types: &[TypeId], jobs: &[i32]) -> Result<(), StoreError> {
        self.query(Statement::SpendTokens, &[&types, &jobs]).await.map(drop)
    }

    /// Replaces the limits of a type. Ready jobs that may not run any more wait again: the first of them here, the
    /// others in `continue_limit_changes`.
    pub(super) async fn set_limits(&mut self, name: &str, limits: &TypeLimits) -> Result<(), StoreError> {
        let changed = self.query(Statement::SetLimits, &[&name, &Json(limits)]).await?;
        if let Some(row) = changed.first() {
            self.query(Statement::BeginLimitChange, &[&row.get::<_, TypeId>("id")]).await?;
        }
        Ok(())
    }
}

impl Store {
    /// One step of applying changed limits, for at most this many keys and jobs; returns when the next one is due.
    pub async fn continue_limit_changes(&self, at_most: i32) -> Result<Option<Duration>, StoreError> {
        let row = self.hot().await?.query_one(Statement::ContinueLimitChanges, &[&at_most]).await?;
        Ok(row.get::<_, Option<i64>>("next_in_us").map(|us| Duration::from_micros(us.max(0) as u64)))
    }

    /// Pauses a limit key; without a duration the pause has no end.
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
        until_unlocked(self, pause).await
    }

    /// Limit keys of a type, after this one, that have waiting jobs or are paused.
    pub async fn list_limit_keys(
        &self,
        type_id: TypeId,
        after: &str,
        at_most: i32,
    ) -> Result<Vec<LimitKeyView>, StoreError> {
        let rows = self.read(Statement::ListLimitKeys, &[&type_id, &after, &at_most]).await?;
        Ok(rows
            .iter()
            .map(|row| LimitKeyView {
                key: row.get("limit_key"),
                waiting: row.get("waiting"),
                running: row.get("running"),
                paused_until: row.get("paused_until"),
                paused: row.get("paused"),
            })
            .collect())
    }

    /// Deletes states of limit keys, held keys and fair shares that are no longer needed.
    pub async fn delete_idle_limit_states(&self) -> Result<(), StoreError> {
        self.general().await?.query(Statement::DeleteIdleLimitStates, &[]).await.map(drop)
    }
}
