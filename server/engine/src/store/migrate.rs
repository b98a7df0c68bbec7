//! Creates or upgrades the schema, in one transaction. Tables change by numbered migrations; functions and the view are
//! replaced as a whole (`server/engine/schema/README.md`).
//!
//! Concurrent brokers are serialised by a lock on one of Howdah's tables. An advisory lock would not be safe, because
//! every role that can log in may take it and block all brokers. If nothing has to change, no lock is taken.

use std::{sync::LazyLock, time::Duration};

use tokio_postgres::error::SqlState;

use super::{
    Loan, Store, StoreError,
    connection::Connection,
    release, rights,
    schema::{self, Source},
    statement::in_schema,
};

/// Timeout of a migration, and of waiting for another broker's migration.
const LONGEST: Duration = Duration::from_secs(3600);
/// Interval at which a waiting broker retries the lock.
const RETRY_LOCK: Duration = Duration::from_millis(100);
/// SQLSTATEs after which a migration waits and tries again, because another broker holds the lock, is creating the
/// schema, or has just created the schema.
const BUSY: [SqlState; 4] =
    [SqlState::LOCK_NOT_AVAILABLE, SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_TABLE];

/// Name and source files of a part of the schema that is replaced as a whole.
type Part = (&'static str, &'static [&'static [Source]]);

/// All parts of the schema that are replaced as a whole.
const PARTS: [Part; 2] =
    [("functions", &[schema::DROPPED, schema::VALUES, schema::FUNCTIONS]), ("view", &[schema::VIEW])];

/// Hashes of [`PARTS`]. They are computed once in a process, because the texts are large.
static HASHES: LazyLock<[String; 2]> = LazyLock::new(|| PARTS.map(|(_, sources)| schema::hash(sources)));

/// Result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationReport {
    /// Whether the schema was created.
    pub created: bool,
    /// Names of the applied table migrations.
    pub applied: Vec<String>,
    /// Names of the replaced parts: `functions`, `view`.
    pub replaced: Vec<String>,
    /// Newer release that installed the functions or the view. If set, the migration has not replaced them.
    pub newer: Option<String>,
    /// Version of the tables: the number of the last migration, 0 before the first.
    pub version: u32,
    /// Number of functions and tables whose rights or owners were corrected. 0 for a new schema.
    pub rights_set: u64,
    /// Descriptions of unintended rights that the migration has left unchanged, because it may not change them, or
    /// because they belong to roles other than Howdah's.
    pub rights_left: Vec<String>,
}

/// A row of `schema_part`: the installed state of the tables, the functions or the view.
struct StoredPart {
    part: String,
    hash: Option<String>,
    version: Option<u32>,
    release: String,
}

/// Changes that bring an existing schema to this release.
struct Due {
    migrations: Vec<(u32, &'static str, &'static str)>,
    parts: Vec<Part>,
    newer: Option<String>,
    version: u32,
}

impl Due {
    fn new(stored: &[StoredPart]) -> Result<Self, StoreError> {
        let included = stored.iter().find_map(|part| part.version).ok_or_else(|| {
            StoreError::Refused("schema_part has no row for the tables: restore the schema from a whole dump".into())
        })?;
        let numbered = schema::MIGRATIONS.iter().map(|(name, sql)| (schema::number(name), *name, *sql));
        let migrations: Vec<_> = numbered.filter(|(number, ..)| *number > included).collect();
        let version = migrations.last().map_or(included, |(number, ..)| *number);
        let mut due = Self { migrations, parts: Vec::new(), newer: None, version };
        for ((name, sources), hash) in PARTS.into_iter().zip(&*HASHES) {
            let there = stored.iter().find(|part| part.part == name);
            let differs = there.is_none_or(|part| part.hash.as_ref() != Some(hash));
            // After a table migration, functions and the view are always replaced, because they may use changed tables.
            if !differs && due.migrations.is_empty() {
                continue;
            }
            match there {
                // Keep the functions of a newer release, because brokers of that release run beside this broker, or
                // will run again.
                Some(part) if release::order(&part.release, release::OURS).is_gt() => {
                    due.newer = Some(part.release.clone());
                }
                _ => due.parts.push((name, sources)),
            }
        }
        Ok(due)
    }

    fn is_nothing(&self) -> bool {
        self.migrations.is_empty() && self.parts.is_empty()
    }

    /// Converts the pending changes to a report of applied changes. The caller applies them all.
    fn report(self, created: bool) -> MigrationReport {
        MigrationReport {
            created,
            applied: self.migrations.iter().map(|(_, name, _)| (*name).to_owned()).collect(),
            replaced: self.parts.iter().map(|(name, _)| (*name).to_owned()).collect(),
            newer: self.newer,
            version: self.version,
            ..MigrationReport::default()
        }
    }
}

pub(super) async fn run(store: &Store) -> Result<MigrationReport, StoreError> {
    let until = tokio::time::Instant::now() + LONGEST;
    loop {
        let mut connection = store.general().await?;
        // A migration may take longer than the usual statement timeout.
        connection.set_timeout(LONGEST);
        let report = attempt(&mut connection, store.schema(), store.test_clock).await;
        connection.mark_broken();
        if let Some(report) = report? {
            return Ok(report);
        }
        drop(connection);
        wait_until(until).await?;
    }
}

/// Begins a transaction that locks the schema against changes by other brokers.
pub(super) async fn lock(store: &Store) -> Result<Loan<'_>, StoreError> {
    let until = tokio::time::Instant::now() + LONGEST;
    loop {
        let mut connection = store.general().await?;
        begin(&mut connection).await?;
        if connection.try_batch(&lock_statement(store.schema()), &BUSY).await? {
            return Ok(connection);
        }
        connection.roll_back().await;
        drop(connection);
        wait_until(until).await?;
    }
}

fn lock_statement(schema: &str) -> String {
    format!("LOCK TABLE {schema}.schema_part IN EXCLUSIVE MODE NOWAIT")
}

/// Sleeps before the next attempt. The caller must hold no connection: behind a pooler, waiting brokers would otherwise
/// take all connections from the migrating broker.
async fn wait_until(until: tokio::time::Instant) -> Result<(), StoreError> {
    if tokio::time::Instant::now() > until {
        return Err(StoreError::RolledBack(
            "another broker has been migrating the schema for an hour; see the log of that broker".into(),
        ));
    }
    tokio::time::sleep(RETRY_LOCK).await;
    Ok(())
}

/// Makes one attempt to migrate. `None` if another broker is migrating.
async fn attempt(
    connection: &mut Connection,
    schema: &str,
    test_clock: bool,
) -> Result<Option<MigrationReport>, StoreError> {
    begin(connection).await?;
    let result = migrate(connection, schema, test_clock).await;
    match &result {
        Ok(Some(_)) => connection.batch("COMMIT").await?,
        _ => connection.roll_back().await,
    }
    result
}

async fn migrate(
    connection: &mut Connection,
    schema: &str,
    test_clock: bool,
) -> Result<Option<MigrationReport>, StoreError> {
    let Some(stored) = stored_parts(connection, schema).await? else {
        let known = rights::objects(connection, schema).await?;
        if !create(connection, schema, test_clock).await? {
            return Ok(None);
        }
        let made = stored_parts(connection, schema).await?.unwrap_or_default();
        let report = with_rights(connection, schema, &known, Due::new(&made)?.report(true)).await?;
        return Ok(Some(MigrationReport { rights_set: 0, ..report }));
    };
    let due = Due::new(&stored)?;
    // Rights are checked even if nothing has changed: a dump restored without rights lets PUBLIC call every function.
    if due.is_nothing() {
        let rights = rights::unintended(connection, schema).await?;
        if !rights.can_set {
            return Ok(Some(MigrationReport { rights_left: rights.left, ..due.report(false) }));
        }
    }
    if !connection.try_batch(&lock_statement(schema), &BUSY).await? {
        return Ok(None);
    }
    // Another broker may have migrated before this transaction got the lock, so the pending changes are computed again.
    let due = Due::new(&stored_parts(connection, schema).await?.unwrap_or_default())?;
    let known = rights::objects(connection, schema).await?;
    for (_, name, sql) in &due.migrations {
        let applied = connection.batch(&in_schema(sql, schema)).await;
        applied.map_err(|error| named(error, name))?;
    }
    if !due.migrations.is_empty() {
        let (version, release) = (due.version, release::OURS);
        let note = format!(
            "UPDATE {schema}.schema_part SET version = {version}, release = '{release}', changed = now()
             WHERE part = 'tables'"
        );
        connection.batch(&note).await?;
    }
    replace_all(connection, schema, &due.parts).await?;
    if !due.migrations.is_empty() {
        record_structure(connection, schema).await?;
    }
    Ok(Some(with_rights(connection, schema, &known, due.report(false)).await?))
}

/// Sets the rights on all objects. On objects that are not `known`, revokes rights that come from default privileges.
async fn with_rights(
    connection: &mut Connection,
    schema: &str,
    known: &str,
    report: MigrationReport,
) -> Result<MigrationReport, StoreError> {
    let rights_set = rights::set(connection, schema, known).await?;
    let rights_left = rights::unintended(connection, schema).await?.left;
    Ok(MigrationReport { rights_set, rights_left, ..report })
}

/// Reads the stored state of the schema's parts. `None` if the schema does not exist.
async fn stored_parts(connection: &mut Connection, schema: &str) -> Result<Option<Vec<StoredPart>>, StoreError> {
    let there = format!("SELECT to_regclass('{schema}.schema_part') IS NOT NULL");
    if !connection.ask(&there).await? {
        return Ok(None);
    }
    let rows = connection.texts(&format!("SELECT part, hash, version, release FROM {schema}.schema_part")).await?;
    let parts = rows.into_iter().map(|row| {
        let mut row = row.into_iter();
        let mut next = || row.next().flatten();
        StoredPart {
            part: next().unwrap_or_default(),
            hash: next(),
            version: next().and_then(|version| version.parse().ok()),
            release: next().unwrap_or_default(),
        }
    });
    Ok(Some(parts.collect()))
}

/// Creates the whole schema at its current version, with a clock for tests if `test_clock` is set. False if another
/// broker is creating it.
async fn create(connection: &mut Connection, schema: &str, test_clock: bool) -> Result<bool, StoreError> {
    // The database must be UTF-8, because another encoding would reject some keys, headers and texts, job by job.
    // CREATE SCHEMA runs only if the schema is missing: even with IF NOT EXISTS it needs a right that a role may lack
    // if an administrator has created the schema.
    let prepare = format!(
        "DO $$ BEGIN
            IF current_setting('server_encoding') <> 'UTF8' THEN
                RAISE EXCEPTION 'the encoding of database % is %, and Howdah needs UTF8: create another database with createdb --encoding=UTF8 --template=template0',
                    quote_ident(current_database()), current_setting('server_encoding') USING ERRCODE = '22021';
            ELSIF num_nonnulls(to_regclass('{schema}.task_type'), to_regclass('{schema}.schema_history')) > 0
                  AND to_regclass('{schema}.schema_part') IS NULL THEN -- else another broker has just made it
                RAISE EXCEPTION 'schema {schema} of database % was made by a development version before 0.1.0, which cannot be upgraded: use another database or another schema (--schema), or drop it with all of its jobs (DROP SCHEMA {schema} CASCADE)',
                    quote_ident(current_database()) USING ERRCODE = '55000';
            END IF;
            IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA IF NOT EXISTS {schema}; END IF;
        END $$"
    );
    // While another broker is creating the schema, this statement would wait. It gives up soon, because the caller
    // waits without a connection.
    connection.batch("SET LOCAL lock_timeout = '100ms'").await?;
    if !connection.try_batch(&prepare, &BUSY).await? {
        return Ok(false);
    }
    if test_clock {
        apply(connection, schema, &[schema::TEST_CLOCK]).await?;
    }
    for source in schema::SCHEMA_PART {
        if !connection.try_batch(&in_schema(&source.text(), schema), &BUSY).await? {
            return Ok(false);
        }
    }
    connection.batch(LOCK_TIMEOUT).await?;
    apply(connection, schema, &[schema::VALUES, schema::TABLES]).await?;
    let release = release::OURS;
    let version = schema::MIGRATIONS.last().map_or(0, |(name, _)| schema::number(name));
    let tables =
        format!("INSERT INTO {schema}.schema_part (part, version, release) VALUES ('tables', {version}, '{release}')");
    connection.batch(&tables).await?;
    replace_all(connection, schema, &PARTS).await?;
    record_structure(connection, schema).await?;
    Ok(true)
}

/// Stores the names and definitions of indexes, constraints and triggers, from which `howdah doctor` finds missing ones.
async fn record_structure(connection: &mut Connection, schema: &str) -> Result<(), StoreError> {
    let record = format!("UPDATE {schema}.schema_part SET structure = {schema}.structure() WHERE part = 'tables'");
    connection.batch(&record).await
}

/// Replaces parts of the schema, and stores the hashes of their sources.
async fn replace_all(connection: &mut Connection, schema: &str, parts: &[Part]) -> Result<(), StoreError> {
    for (name, sources) in parts {
        apply(connection, schema, sources).await?;
        let (hash, release) = (schema::hash(sources), release::OURS);
        let note = format!(
            "INSERT INTO {schema}.schema_part (part, hash, release) VALUES ('{name}', '{hash}', '{release}')
             ON CONFLICT (part) DO UPDATE SET hash = excluded.hash, release = excluded.release, changed = excluded.changed"
        );
        connection.batch(&note).await?;
    }
    Ok(())
}

/// Runs source files. An error names the file.
async fn apply(connection: &mut Connection, schema: &str, lists: &[&[Source]]) -> Result<(), StoreError> {
    for list in lists {
        for source in *list {
            let result = connection.batch(&in_schema(&source.text(), schema)).await;
            result.map_err(|error| named(error, source.path))?;
        }
    }
    Ok(())
}

/// Adds the name of the failed file to an error.
fn named(error: StoreError, file: &str) -> StoreError {
    match error {
        StoreError::Refused(cause) | StoreError::Taken(cause) => StoreError::Refused(cause.in_file(file)),
        StoreError::RolledBack(cause) => StoreError::RolledBack(cause.in_file(file)),
        other => other,
    }
}

/// Maximum wait for each lock of a migration, after which the migration fails. Replacing a view waits for transactions
/// that have read it, and meanwhile all new readers of the view wait too.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '1min'";

/// Begins a transaction that creates or replaces schema objects, without statement and idle timeouts.
async fn begin(connection: &mut Connection) -> Result<(), StoreError> {
    connection.batch("BEGIN").await?;
    // Extra checks of PL/pgSQL, which a role or a database may have turned on, apply to the definition of functions.
    connection
        .batch(
            "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
             SET LOCAL plpgsql.extra_errors = 'none'; SET LOCAL plpgsql.extra_warnings = 'none'",
        )
        .await?;
    connection.batch(LOCK_TIMEOUT).await
}
