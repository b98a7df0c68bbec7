//! Names and settings of task types.

use std::time::Duration;

use postgres_types::Json;
use tokio_postgres::Row;

use super::{Statement, Store, StoreError};
use crate::job::{HistoryMode, TaskTypeName, TypeId, TypeSettings, TypeView};

/// A task type as stored.
#[derive(Clone, Debug)]
pub struct TypeRow {
    /// Its key.
    pub id: TypeId,
    /// Its name.
    pub name: String,
    /// What was set for it.
    pub settings: TypeSettings,
}

impl Store {
    /// The types of these names that exist.
    pub async fn task_types(&self, names: &[&str]) -> Result<Vec<TypeRow>, StoreError> {
        let rows = self.general().await?.query(Statement::TaskTypesByName, &[&names]).await?;
        Ok(rows.iter().map(type_row).collect())
    }

    /// Makes the types of these names that do not exist.
    pub async fn create_task_types(&self, names: &[&str]) -> Result<(), StoreError> {
        self.general().await?.query(Statement::CreateTaskTypes, &[&names]).await.map(drop)
    }

    /// Every type that has settings.
    pub async fn all_settings(&self) -> Result<Vec<TypeRow>, StoreError> {
        let rows = self.general().await?.query(Statement::AllSettings, &[]).await?;
        Ok(rows.iter().map(type_row).collect())
    }

    /// Replaces a type's settings, `fallback` being the number of its fallback; makes the type if it is new.
    pub async fn update_task_type(
        &self,
        name: &str,
        settings: &TypeSettings,
        fallback: Option<TypeId>,
    ) -> Result<(), StoreError> {
        let retry = (!settings.retry.is_empty()).then_some(Json(&settings.retry));
        let mut connection = self.general().await?;
        let history = settings.history.map(HistoryMode::name);
        connection
            .query(Statement::UpdateTaskType, &[&name, &settings.max_attempts, &retry, &history, &fallback])
            .await
            .map(drop)
    }

    /// Types by name after `after`, with counts.
    pub async fn list_task_types(
        &self,
        after: &str,
        at_most: i32,
        only: Option<&str>,
    ) -> Result<Vec<TypeView>, StoreError> {
        let rows = self.general().await?.query(Statement::ListTaskTypes, &[&after, &at_most, &only]).await?;
        Ok(rows
            .iter()
            .map(|row| TypeView {
                name: row.get("name"),
                settings: settings(row),
                counts: ["ready", "leased", "scheduled", "waiting", "dead"].map(|state| row.get(state)),
                oldest_ready: row
                    .get::<_, Option<i64>>("oldest_ready_ms")
                    .map(|ms| Duration::from_millis(ms.max(0) as u64)),
            })
            .collect())
    }
}

fn type_row(row: &Row) -> TypeRow {
    TypeRow { id: row.get("id"), name: row.get("name"), settings: settings(row) }
}

fn settings(row: &Row) -> TypeSettings {
    let retry: Option<Json<_>> = row.get("retry_policy");
    TypeSettings {
        max_attempts: row.get("max_attempts"),
        retry: retry.map(|Json(r)| r).unwrap_or_default(),
        history: row.get::<_, Option<&str>>("history").and_then(HistoryMode::parse),
        fallback: row.get::<_, Option<&str>>("fallback").and_then(|name| TaskTypeName::parse(name).ok()),
    }
}
