//! Makes the schema, or brings it up to date. Its tables change by numbered migrations, its functions and its view are
//! replaced as a whole (`server/schema/README.md`). All of it is one transaction, so it is there as a whole or not at all.
//! Brokers that start at once are kept apart by a lock on a table of ours: an advisory lock anybody may take who may log in.
//! With nothing to change there is no lock.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::{
    Loan, Store, StoreError,
    connection::Connection,
    release,
    schema::{self, Source},
    statement::in_schema,
};

/// How long a migration may take, and waiting for another broker's.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often a waiting broker tries to take the lock.
const RETRY_LOCK: Duration = Duration::from_millis(100);
/// Another broker holds the lock, or is making the schema, or has just made it.
const BUSY: [SqlState; 4] =
    [SqlState::LOCK_NOT_AVAILABLE, SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_TABLE];

/// A part of the schema that is replaced as a whole.
type Part = (&'static str, &'static [&'static [Source]]);

/// All of them.
const PARTS: [Part; 2] =
    [("functions", &[schema::DROPPED, schema::VALUES, schema::FUNCTIONS]), ("view", &[schema::VIEW])];

/// The result of a migration run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationReport {
    /// Whether the schema was created.
    pub created: bool,
    /// Names of the migrations of tables that were applied.
    pub applied: Vec<String>,
    /// Parts that were replaced: `functions`, `view`.
    pub replaced: Vec<String>,
    /// The newer release whose functions or view were not changed.
    pub newer: Option<String>,
    /// The version of the tables: the number of the last migration, 0 before the first.
    pub version: u32,
}

/// A part as the database has it.
struct StoredPart {
    part: String,
    hash: Option<String>,
    version: Option<u32>,
    release: String,
}

/// What there is to do on a schema that is there.
struct Due {
    migrations: Vec<(u32, &'static str, &'static str)>,
    parts: Vec<Part>,
    newer: Option<String>,
    version: u32,
}

impl Due {
    fn of(stored: &[StoredPart]) -> Result<Self, StoreError> {
        let included = stored.iter().find_map(|part| part.version).ok_or_else(|| {
            StoreError::Refused("schema_part has no row for the tables: restore the schema from a whole dump".into())
        })?;
        let numbered = schema::MIGRATIONS.iter().map(|(name, sql)| (schema::number(name), *name, *sql));
        let migrations: Vec<_> = numbered.filter(|(number, ..)| *number > included).collect();
        let version = migrations.last().map_or(included, |(number, ..)| *number);
        let mut due = Self { migrations, parts: Vec::new(), newer: None, version };
        for (name, sources) in PARTS {
            let hash = schema::hash(sources);
            let there = stored.iter().find(|part| part.part == name);
            let differs = there.is_none_or(|part| part.hash.as_ref() != Some(&hash));
            // After a migration in any case: it may have changed what functions use.
            if !differs && due.migrations.is_empty() {
                continue;
            }
            match there {
                // A broker of that release runs beside this one, or will again.
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

    /// What was done, once all of it is.
    fn report(self, created: bool) -> MigrationReport {
        MigrationReport {
            created,
            applied: self.migrations.iter().map(|(_, name, _)| (*name).to_owned()).collect(),
            replaced: self.parts.iter().map(|(name, _)| (*name).to_owned()).collect(),
            newer: self.newer,
            version: self.version,
        }
    }
}

pub(super) async fn run(store: &Store) -> Result<MigrationReport, StoreError> {
    let until = tokio::time::Instant::now() + LONGEST;
    loop {
        let mut connection = store.general().await?;
        // A migration may take longer than a statement of daily work.
        connection.set_timeout(LONGEST);
        let report = attempt(&mut connection, store.schema()).await;
        connection.retire();
        if let Some(report) = report? {
            return Ok(report);
        }
        drop(connection);
        wait_until(until).await?;
    }
}

/// Begins a transaction in which nobody else makes or replaces the schema.
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

/// Waits without a connection: behind a pooler those that wait would otherwise take all of them from the one that works.
async fn wait_until(until: tokio::time::Instant) -> Result<(), StoreError> {
    if tokio::time::Instant::now() > until {
        return Err(StoreError::RolledBack("another broker has been migrating for an hour".into()));
    }
    tokio::time::sleep(RETRY_LOCK).await;
    Ok(())
}

/// `None`: another broker is at it.
async fn attempt(connection: &mut Connection, schema: &str) -> Result<Option<MigrationReport>, StoreError> {
    begin(connection).await?;
    let result = migrate(connection, schema).await;
    match &result {
        Ok(Some(_)) => connection.batch("COMMIT").await?,
        _ => connection.roll_back().await,
    }
    result
}

async fn migrate(connection: &mut Connection, schema: &str) -> Result<Option<MigrationReport>, StoreError> {
    let Some(stored) = stored_parts(connection, schema).await? else {
        if !create(connection, schema).await? {
            return Ok(None);
        }
        let made = stored_parts(connection, schema).await?.unwrap_or_default();
        return Ok(Some(Due::of(&made)?.report(true)));
    };
    let due = Due::of(&stored)?;
    if due.is_nothing() {
        return Ok(Some(due.report(false)));
    }
    if !connection.try_batch(&lock_statement(schema), &BUSY).await? {
        return Ok(None);
    }
    // Another broker may have done it meanwhile.
    let due = Due::of(&stored_parts(connection, schema).await?.unwrap_or_default())?;
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
    Ok(Some(due.report(false)))
}

/// What the database says of its parts; `None` if it is new.
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

/// Makes everything, as it is; false: another broker does.
async fn create(connection: &mut Connection, schema: &str) -> Result<bool, StoreError> {
    // Keys, headers and texts are UTF-8: another encoding would refuse some of them, job by job.
    // CREATE SCHEMA … IF NOT EXISTS alone asks for the right to create even where the schema is there, made by an
    // administrator for a role that may do no more.
    let prepare = format!(
        "DO $$ BEGIN
            IF current_setting('server_encoding') <> 'UTF8' THEN
                RAISE EXCEPTION 'the encoding of database % is %, and Howdah needs UTF8: make another one, with createdb --encoding=UTF8 --template=template0',
                    quote_ident(current_database()), current_setting('server_encoding') USING ERRCODE = '22021';
            ELSIF num_nonnulls(to_regclass('{schema}.task_type'), to_regclass('{schema}.schema_history')) > 0
                  AND to_regclass('{schema}.schema_part') IS NULL THEN -- else another broker has just made it
                RAISE EXCEPTION 'schema {schema} of database % was made by a development version before 0.1.0, which cannot be upgraded: use another database or another schema (--schema), or drop it with all of its jobs (DROP SCHEMA {schema} CASCADE)',
                    quote_ident(current_database()) USING ERRCODE = '55000';
            END IF;
            IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA IF NOT EXISTS {schema}; END IF;
        END $$"
    );
    // What another broker is making is waited for here, but not with this connection.
    connection.batch("SET LOCAL lock_timeout = '100ms'").await?;
    if !connection.try_batch(&prepare, &BUSY).await? {
        return Ok(false);
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
    Ok(true)
}

/// Replaces parts, and stores the hashes of their texts.
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

/// Runs files; an error names the file.
async fn apply(connection: &mut Connection, schema: &str, lists: &[&[Source]]) -> Result<(), StoreError> {
    for list in lists {
        for source in *list {
            let result = connection.batch(&in_schema(&source.text(), schema)).await;
            result.map_err(|error| named(error, source.path))?;
        }
    }
    Ok(())
}

/// The error, with the file that it is in.
fn named(error: StoreError, file: &str) -> StoreError {
    match error {
        StoreError::Refused(cause) | StoreError::Taken(cause) => StoreError::Refused(cause.in_file(file)),
        StoreError::RolledBack(cause) => StoreError::RolledBack(cause.in_file(file)),
        other => other,
    }
}

/// Replacing a view waits for transactions that have read it, and everybody who wants to read it waits behind: not longer
/// than a minute.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '1min'";

/// Begins a transaction in which a schema is made or replaced.
async fn begin(connection: &mut Connection) -> Result<(), StoreError> {
    connection.batch("BEGIN").await?;
    connection.batch("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0").await?;
    connection.batch(LOCK_TIMEOUT).await
}
