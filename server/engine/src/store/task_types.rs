//! Names and settings of task types.

use std::time::{Duration, SystemTime};

use howdah_core::job::{HistoryMode, JobState, TaskTypeName, TypeId, TypeSettings, TypeView};
use postgres_types::Json;
use tokio_postgres::Row;

use super::{
    Actor, Lane, LockWait, Statement, Store, StoreError,
    audit::{Change, SettingsBefore},
    limits,
    transaction::retry_while_locked_in_side_lane,
};

/// A task type with its settings.
#[derive(Clone, Debug)]
pub struct SettingsRow {
    /// Id of the task type.
    pub id: TypeId,
    /// Name of the task type.
    pub name: String,
    pub settings: TypeSettings,
    /// Whether the priority step was changed, and some ranks may still use the old step.
    pub step_changed: bool,
}

impl Store {
    /// Returns the ids and names of the given task types that exist.
    pub async fn task_types(&self, names: &[&str]) -> Result<Vec<(TypeId, String)>, StoreError> {
        let rows = self.general().await?.query(Statement::TaskTypesByName, &[&names]).await?;
        Ok(rows.iter().map(|row| (row.get("id"), row.get("name"))).collect())
    }

    /// Returns the creation time of the task type with this name. `None` if it does not exist.
    pub(crate) async fn task_type_created(&self, name: &str) -> Result<Option<SystemTime>, StoreError> {
        let rows = self.general().await?.query(Statement::TaskTypeCreated, &[&name]).await?;
        Ok(rows.first().map(|row| row.get("created")))
    }

    /// Creates missing task types for a principal (empty if authentication is off). Fails with `Locked` if another
    /// transaction is creating one of them.
    pub async fn create_task_types(&self, names: &[&str], by: &str) -> Result<(), StoreError> {
        let store = self.side_lane(Lane::Operate, LockWait::Short);
        store.hot().await?.query(Statement::CreateTaskTypes, &[&names, &by]).await.map(drop)
    }

    /// Creates missing task types, and waits for other transactions that are creating them.
    pub async fn create_locked_task_types(&self, names: &[&str], by: &str) -> Result<(), StoreError> {
        let create = |store: Store| async move {
            store.hot().await?.query(Statement::CreateTaskTypes, &[&names, &by]).await.map(drop)
        };
        retry_while_locked_in_side_lane(&self.side_lane(Lane::Operate, LockWait::Short), create).await
    }

    /// Records that these task types are in use, so that they are not deleted as unused.
    pub async fn use_task_types(&self, ids: &[TypeId]) -> Result<(), StoreError> {
        self.general().await?.query(Statement::UseTaskTypes, &[&ids]).await.map(drop)
    }

    /// Records which task types have no jobs, settings or schedules. Deletes at most `at_most` types that have been
    /// unused for `days` days. Returns the names of deleted types.
    pub async fn delete_unused_task_types(&self, days: i64, at_most: i32) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::DeleteUnusedTaskTypes, &[&days, &at_most]).await?;
        Ok(rows.iter().map(|row| row.get("name")).collect())
    }

    /// Returns all task types that have settings.
    pub async fn all_settings(&self) -> Result<Vec<SettingsRow>, StoreError> {
        let rows = self.general().await?.query(Statement::AllSettings, &[]).await?;
        let row = |row: &Row| SettingsRow {
            id: row.get("id"),
            name: row.get("name"),
            settings: settings(row),
            step_changed: row.get("step_changed"),
        };
        Ok(rows.iter().map(row).collect())
    }

    /// Replaces the settings of a task type, and creates the type if it does not exist. `fallback` is the id of its
    /// fallback type. Returns the settings version.
    pub async fn update_task_type(
        &self,
        name: &str,
        settings: &TypeSettings,
        fallback: Option<TypeId>,
        by: &Actor,
    ) -> Result<i64, StoreError> {
        retry_while_locked_in_side_lane(
            self,
            |store| async move { store.update_once(name, settings, fallback, by).await },
        )
        .await
    }

    async fn update_once(
        &self,
        name: &str,
        settings: &TypeSettings,
        fallback: Option<TypeId>,
        by: &Actor,
    ) -> Result<i64, StoreError> {
        let mut transaction = self.begin().await?;
        let names: &[&str] = &[name];
        transaction.query(Statement::CreateTaskTypes, &[&names, &by.name()]).await?;
        transaction.query(Statement::LockSettings, &[]).await?;
        let before = SettingsBefore::read(transaction.connection(), SettingsBefore::TASK_TYPE, name).await?;
        let rows = transaction
            .query(
                Statement::UpdateTaskType,
                &[
                    &name,
                    &settings.max_attempts,
                    &(!settings.retry.is_empty()).then_some(Json(&settings.retry)),
                    &settings.history.map(HistoryMode::name),
                    &settings.priority_step_us,
                    &settings.timeout.map(|timeout| timeout.as_millis() as i64),
                    &settings.paused.then_some(true),
                    &settings.max_payload_bytes,
                    &settings.max_backlog,
                    &settings.history_days,
                    &fallback,
                    &settings.dead_days,
                ],
            )
            .await?;
        transaction.set_limits(name, &settings.limits).await?;
        transaction
            .record(by, &Change { types: vec![name], count: 1, before: Some(before), ..Change::default() })
            .await?;
        transaction.commit().await?;
        Ok(rows.first().map_or(0, |row| row.get("version")))
    }

    /// Returns task types after the name `after`, with their job counts.
    pub async fn list_task_types(
        &self,
        after: &str,
        at_most: i32,
        only: Option<&str>,
    ) -> Result<Vec<TypeView>, StoreError> {
        let rows = self.read(Statement::ListTaskTypes, &[&after, &at_most, &only]).await?;
        Ok(rows
            .iter()
            .map(|row| TypeView {
                name: row.get("name"),
                settings: settings(row),
                counts: JobState::COUNTED.map(|state| row.get(state.name())),
                last_pull: row.get("last_pull"),
                braked: limits::braked(row),
                oldest_ready: row
                    .get::<_, Option<i64>>("oldest_ready_ms")
                    .map(|ms| Duration::from_millis(ms.max(0) as u64)),
                next_due: row.get::<_, Option<i64>>("next_due_ms").map(|ms| Duration::from_millis(ms.max(0) as u64)),
            })
            .collect())
    }

    /// Counts the jobs in the backlog of each given task type, up to the maximum that is paired with the type.
    pub async fn backlogs(&self, types: &[(TypeId, i64)]) -> Result<Vec<(TypeId, i64)>, StoreError> {
        let (ids, most): (Vec<TypeId>, Vec<i64>) = types.iter().copied().unzip();
        let rows = self.hot().await?.query(Statement::Backlogs, &[&ids, &most]).await?;
        Ok(rows.iter().map(|row| (row.get("type_id"), row.get("jobs"))).collect())
    }
}

fn settings(row: &Row) -> TypeSettings {
    // A role with SQL access may have written an invalid value, which counts as unset.
    let retry: Option<Json<_>> = row.try_get("retry_policy").unwrap_or_default();
    let limits: Option<Json<_>> = row.try_get("limits").unwrap_or_default();
    TypeSettings {
        max_attempts: row.get("max_attempts"),
        retry: retry.map(|Json(r)| r).unwrap_or_default(),
        history: row.get::<_, Option<&str>>("history").and_then(HistoryMode::parse),
        limits: limits.map(|Json(l)| l).unwrap_or_default(),
        priority_step_us: row.get("priority_step_us"),
        timeout: row.get::<_, Option<i64>>("timeout_ms").map(|ms| Duration::from_millis(ms.max(0) as u64)),
        paused: row.get::<_, Option<bool>>("paused").unwrap_or_default(),
        max_payload_bytes: row.get("max_payload_bytes"),
        max_backlog: row.get("max_backlog"),
        history_days: row.get("history_days"),
        dead_days: row.get("dead_days"),
        fallback: row.get::<_, Option<&str>>("fallback").and_then(|name| TaskTypeName::parse(name).ok()),
    }
}
