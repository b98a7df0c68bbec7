//! Brings the schema up to date. refinery takes no lock, so many brokers starting at once are kept
//! apart by an advisory lock.

use std::time::Duration;

use refinery::{Migration, Runner};

use super::{Store, StoreError, connection::Connection, statement::in_schema};

/// The migrations, oldest first. A landed one is never edited.
const MIGRATIONS: [(&str, &str); 17] = [
    ("V1__tables_per_state", include_str!("../../migrations/V1__tables_per_state.sql")),
    ("V2__payload_once_history_mode", include_str!("../../migrations/V2__payload_once_history_mode.sql")),
    ("V3__special_jobs", include_str!("../../migrations/V3__special_jobs.sql")),
    ("V4__schedules", include_str!("../../migrations/V4__schedules.sql")),
    ("V5__failure", include_str!("../../migrations/V5__failure.sql")),
    ("V6__checkpoints_have_weight", include_str!("../../migrations/V6__checkpoints_have_weight.sql")),
    ("V7__type_settings", include_str!("../../migrations/V7__type_settings.sql")),
    ("V8__limits", include_str!("../../migrations/V8__limits.sql")),
    ("V9__enqueue_special", include_str!("../../migrations/V9__enqueue_special.sql")),
    ("V10__sql_checks", include_str!("../../migrations/V10__sql_checks.sql")),
    ("V11__sql_enqueue", include_str!("../../migrations/V11__sql_enqueue.sql")),
    ("V12__sql_settle", include_str!("../../migrations/V12__sql_settle.sql")),
    ("V13__keys_hand_over", include_str!("../../migrations/V13__keys_hand_over.sql")),
    ("V14__keys_taken", include_str!("../../migrations/V14__keys_taken.sql")),
    ("V15__limits_hold", include_str!("../../migrations/V15__limits_hold.sql")),
    ("V16__limits_acks", include_str!("../../migrations/V16__limits_acks.sql")),
    ("V17__planned_once", include_str!("../../migrations/V17__planned_once.sql")),
];

/// "howdah" in ASCII: the advisory lock's first key; the second is of the schema.
const LOCK: i32 = 0x686f_7764;

/// How long a migration may take, and waiting for another broker's.
const LONGEST: Duration = Duration::from_secs(3600);
/// How soon the lock is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a migration run did.
#[derive(Clone, Debug, Default)]
pub struct MigrationReport {
    /// Migrations applied now, by name.
    pub applied: Vec<String>,
    /// The schema's version afterwards.
    pub version: u32,
}

pub(super) async fn run(store: &Store) -> Result<MigrationReport, StoreError> {
    let mut lock = lock(store).await?;
    let mut connection = store.general().await?;
    // A migration may take longer than a statement of daily work. (A pooler's session has no such limit, and
    // is not ours to change.)
    connection.set_timeout(LONGEST);
    if connection.owns_session() {
        connection.batch("SET statement_timeout = 0; SET lock_timeout = 0").await?;
    }
    let result = migrate(store, &mut connection).await;
    connection.retire();
    lock.roll_back().await;
    result
}

/// Holds the lock as long as its transaction is open: on a connection of its own, since refinery has
/// transactions too. Who does not get it gives the connection back while it waits: behind a pooler those who
/// wait would otherwise take all of them from the one that works.
async fn lock(store: &Store) -> Result<super::Loan<'_>, StoreError> {
    let take = format!("SELECT pg_try_advisory_xact_lock({LOCK}, hashtext('{}'))", store.schema());
    let until = tokio::time::Instant::now() + LONGEST;
    loop {
        let mut connection = store.general().await?;
        connection.batch("BEGIN").await?;
        connection.batch("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0").await?;
        if connection.ask(&take).await? {
            return Ok(connection);
        }
        if tokio::time::Instant::now() > until {
            return Err(StoreError::RolledBack("another broker has been migrating for an hour".into()));
        }
        connection.roll_back().await;
        drop(connection);
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn migrate(store: &Store, connection: &mut Connection) -> Result<MigrationReport, StoreError> {
    let schema = store.schema();
    // Not CREATE … IF NOT EXISTS alone: that asks for the right to create even where the schema is there,
    // made by an administrator for a role that may do no more.
    // Keys, headers and texts are UTF-8: another encoding would refuse some of them, job by job. A schema that
    // is there already keeps working.
    let create = format!(
        "DO $$ BEGIN
            IF current_setting('server_encoding') <> 'UTF8' THEN
                IF to_regclass('{schema}.schema_history') IS NULL THEN
                    RAISE EXCEPTION 'the encoding of database % is %, and Howdah needs UTF8: make another one, with createdb --encoding=UTF8 --template=template0',
                        quote_ident(current_database()), current_setting('server_encoding') USING ERRCODE = '22021';
                END IF;
            END IF;
            IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA IF NOT EXISTS {schema}; END IF;
        END $$"
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
        .map_err(|error| StoreError::Refused(crate::error::describe(&error)))?;
    let applied = report.applied_migrations().iter().map(ToString::to_string).collect();
    Ok(MigrationReport { applied, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What databases remember of the migrations that have landed: a broker whose own differ does not start on them. Add
    /// those of a release or a landing after it; never change one.
    const LANDED: [u64; 9] = [
        17_399_466_003_602_763_459, // V1
        7_780_634_008_107_811_096,  // V2
        11_604_346_315_963_606_903, // V3
        14_345_011_654_861_922_115, // V4
        7_875_918_646_714_993_600,  // V5
        190_644_403_212_404_476,    // V6
        7_382_499_567_682_026_559,  // V7
        8_703_790_867_330_719_049,  // V8
        3_398_945_080_929_262_941,  // V9
    ];

    #[test]
    fn a_migration_that_has_landed_is_as_it_was() {
        for ((name, sql), landed) in MIGRATIONS.iter().zip(LANDED) {
            let migration = Migration::unapplied(name, &in_schema(sql, "howdah")).expect(name);
            assert_eq!(migration.checksum(), landed, "{name} has landed: put the change into a new migration");
        }
    }
}
