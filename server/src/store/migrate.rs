//! Brings the schema up to date. refinery takes no lock, so many brokers starting at once are kept
//! apart by an advisory lock.

use std::time::Duration;

use refinery::{Migration, Runner};

use super::{Store, StoreError, connection::Connection, statement::in_schema};

/// The migrations, oldest first. A landed one is never edited.
const MIGRATIONS: [(&str, &str); 2] = [
    ("V1__tables_per_state", include_str!("../../migrations/V1__tables_per_state.sql")),
    ("V2__payload_once_history_mode", include_str!("../../migrations/V2__payload_once_history_mode.sql")),
];

/// "howdah" in ASCII: the advisory lock's first key; the second is of the schema.
const LOCK: i32 = 0x686f_7764;

/// What a migration run did.
#[derive(Clone, Debug, Default)]
pub struct MigrationReport {
    /// Migrations applied now, by name.
    pub applied: Vec<String>,
    /// The schema's version afterwards.
    pub version: u32,
}

pub(super) async fn run(store: &Store) -> Result<MigrationReport, StoreError> {
    let mut connection = store.general().await?;
    let lock = format!("SELECT pg_advisory_lock({LOCK}, hashtext('{}'))", store.schema());
    // A migration may take longer than a statement of daily work, and waits for other brokers'.
    connection.set_timeout(Duration::from_secs(3600));
    connection.batch("SET statement_timeout = 0; SET lock_timeout = 0").await?;
    connection.batch(&lock).await?;
    let result = migrate(store, &mut connection).await;
    let unlock = format!("SELECT pg_advisory_unlock({LOCK}, hashtext('{}'))", store.schema());
    connection.batch(&unlock).await?;
    connection.retire();
    result
}

async fn migrate(store: &Store, connection: &mut Connection) -> Result<MigrationReport, StoreError> {
    let schema = store.schema();
    // Not CREATE … IF NOT EXISTS alone: that asks for the right to create even where the schema is there,
    // made by an administrator for a role that may do no more.
    let create = format!(
        "DO $$ BEGIN IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA IF NOT EXISTS {schema}; END IF; END $$"
    );
    connection.batch(&create).await?;
    let migrations = MIGRATIONS
        .iter()
        .map(|(name, sql)| Migration::unapplied(name, &in_schema(sql, schema)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| StoreError::Refused(error.to_string()))?;
    let version = migrations.last().map_or(0, |m| m.version() as u32);
    let mut runner = Runner::new(&migrations).set_abort_divergent(true).set_abort_missing(false);
    runner.set_migration_table_name(format!("{schema}.schema_history"));
    let report = runner
        .run_async(connection.client_mut())
        .await
        .map_err(|error| StoreError::Refused(super::error::describe(&error)))?;
    let applied = report.applied_migrations().iter().map(ToString::to_string).collect();
    Ok(MigrationReport { applied, version })
}
