//! Names and settings of task types.

use std::time::SystemTime;

use howdah_core::job::{HistoryMode, JobState, TaskTypeName, TypeId, TypeSettings, TypeView};
use postgres_types::Json;

use super::{
    Actor, Lane, LockWait, Statement, Store, StoreError,
    audit::{Change, SettingsBefore},
    connection::Params,
    limits,
    rows::{self, from_row, json, millis},
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

from_row! { SettingsRow(row) { id, name, settings: TypeSettings::from_row(row), step_changed } }

impl Store {
    /// Returns the ids and names of the given task types that exist.
    pub async fn task_types(&self, names: &[&str]) -> Result<Vec<(TypeId, String)>, StoreError> {
        self.general().await?.list(Statement::TaskTypesByName, &[&names]).await
    }

    /// Returns the creation time of the task type with this name. `None` if it does not exist.
    pub(crate) async fn task_type_created(&self, name: &str) -> Result<Option<SystemTime>, StoreError> {
        self.general().await?.find(Statement::TaskTypeCreated, &[&name]).await
    }

    /// Creates missing task types for a principal (empty if authentication is off). Fails with `Locked` if another
    /// transaction is creating one of them.
    pub async fn create_task_types(&self, names: &[&str], by: &str) -> Result<(), StoreError> {
        let store = self.side_lane(Lane::Operate, LockWait::Short);
        store.hot().await?.run(Statement::CreateTaskTypes, &[&names, &by]).await
    }

    /// Creates missing task types, and waits for other transactions that are creating them.
    pub async fn create_locked_task_types(&self, names: &[&str], by: &str) -> Result<(), StoreError> {
        let create =
            |store: Store| async move { store.hot().await?.run(Statement::CreateTaskTypes, &[&names, &by]).await };
        retry_while_locked_in_side_lane(&self.side_lane(Lane::Operate, LockWait::Short), create).await
    }

    /// Records that these task types are in use, so that they are not deleted as unused.
    pub async fn use_task_types(&self, ids: &[TypeId]) -> Result<(), StoreError> {
        self.general().await?.run(Statement::UseTaskTypes, &[&ids]).await
    }

    /// Creates task types with these ids, except those whose id or name exists. Returns the names of the created types.
    pub async fn restore_task_types(&self, ids: &[TypeId], names: &[&str]) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::RestoreTaskTypes, &[&ids, &names]).await
    }

    /// Records which task types have no jobs, settings or schedules. Deletes at most `at_most` types that have been
    /// unused for `days` days. Returns the names of deleted types.
    pub async fn delete_unused_task_types(&self, days: i64, at_most: i32) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::DeleteUnusedTaskTypes, &[&days, &at_most]).await
    }

    /// Returns all task types that have settings.
    pub async fn all_settings(&self) -> Result<Vec<SettingsRow>, StoreError> {
        self.general().await?.list(Statement::AllSettings, &[]).await
    }

    /// Replaces the settings of a task type, and creates the type if it does not exist. `fallback` is the id of its
    /// fallback type. Returns the settings version; `None` if `expected` is set and the type has other settings now.
    pub async fn update_task_type(
        &self,
        name: &str,
        settings: &TypeSettings,
        (fallback, expected): (Option<TypeId>, Option<&TypeSettings>),
        by: &Actor,
    ) -> Result<Option<i64>, StoreError> {
        let update = |store: Self| async move {
            let mut transaction = store.begin().await?;
            transaction.run(Statement::CreateTaskTypes, &[&[name].as_slice(), &by.name()]).await?;
            transaction.run(Statement::LockSettings, &[]).await?;
            if let Some(expected) = expected {
                let all: Vec<SettingsRow> = transaction.list(Statement::AllSettings, &[]).await?;
                let now = all.into_iter().find(|row| row.name == name).map(|row| row.settings).unwrap_or_default();
                if now != *expected {
                    transaction.roll_back().await;
                    return Ok(None);
                }
            }
            let before = SettingsBefore::read(&mut transaction, SettingsBefore::TASK_TYPE, name).await?;
            let params: Params<'_> = &[
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
            ];
            let version: Option<i64> = transaction.find(Statement::UpdateTaskType, params).await?;
            transaction.set_limits(name, &settings.limits).await?;
            let change = Change { types: vec![name], count: 1, before: Some(before), ..Change::default() };
            transaction.record(by, &change).await?;
            transaction.commit().await?;
            Ok(Some(version.unwrap_or_default()))
        };
        retry_while_locked_in_side_lane(self, update).await
    }

    /// Returns task types after the name `after`, with their job counts.
    pub async fn list_task_types(
        &self,
        after: &str,
        at_most: i32,
        only: Option<&str>,
    ) -> Result<Vec<TypeView>, StoreError> {
        Ok(rows::all(&self.read(Statement::ListTaskTypes, &[&after, &at_most, &only]).await?))
    }

    /// Counts the jobs in the backlog of each given task type, up to the maximum that is paired with the type.
    pub async fn backlogs(&self, types: &[(TypeId, i64)]) -> Result<Vec<(TypeId, i64)>, StoreError> {
        let (ids, most): (Vec<TypeId>, Vec<i64>) = types.iter().copied().unzip();
        self.hot().await?.list(Statement::Backlogs, &[&ids, &most]).await
    }
}

from_row! {
    TypeView(row) {
        name, settings: TypeSettings::from_row(row), counts: JobState::COUNTED.map(|state| row.get(state.name())),
        last_pull, braked: limits::braked(row), oldest_ready: millis(row, "oldest_ready_ms"), next_due: millis(row, "next_due_ms"),
    }
}

from_row! {
    TypeSettings(row) {
        max_attempts,
        // A role with SQL access may have written an invalid value, which counts as unset.
        retry: json(row, "retry_policy").unwrap_or_default(), limits: json(row, "limits").unwrap_or_default(),
        history: row.get::<_, Option<&str>>("history").and_then(HistoryMode::parse),
        priority_step_us, timeout: millis(row, "timeout_ms"),
        paused: row.get::<_, Option<bool>>("paused").unwrap_or_default(),
        max_payload_bytes, max_backlog, history_days, dead_days,
        fallback: row.get::<_, Option<&str>>("fallback").and_then(|name| TaskTypeName::parse(name).ok()),
    }
}
