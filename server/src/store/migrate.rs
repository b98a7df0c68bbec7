//! Creates the schema, or brings it up to date. Its tables change by numbered migrations; its functions and its view
//! are replaced as a whole (`server/schema/README.md`). An advisory lock makes brokers that start at the same time wait
//! for each other: refinery takes none.

use std::time::Duration;

use refinery::{Migration, Runner, Target};

use super::{
    Store, StoreError,
    connection::Connection,
    release,
    schema::{self, Source},
    statement::in_schema,
};

/// "howdah" in ASCII: the first key of the advisory lock; the second is a hash of the schema.
const LOCK: i32 = 0x686f_7764;
/// How long a migration may take, and how long a broker waits for another broker's.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often a waiting broker tries to take the lock.
const RETRY_LOCK: Duration = Duration::from_millis(100);

/// A part of the schema that is replaced as a whole.
type Part = (&'static str, &'static [&'static [Source]]);

/// All parts; they are replaced in one transaction.
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

pub(super) async fn run(store: &Store) -> Result<MigrationReport, StoreError> {
    let mut lock = lock(store).await?;
    let mut connection = store.general().await?;
    // A migration may take longer than a normal statement. (A pooler's session has no such limit, and we must not
    // change it.)
    connection.set_timeout(LONGEST);
    if connection.owns_session() {
        connection.batch("SET statement_timeout = 0; SET lock_timeout = 0").await?;
    }
    let result = migrate(&mut connection, store.schema()).await;
    connection.retire();
    lock.roll_back().await;
    result
}

/// Holds the lock while its transaction is open. It has a connection of its own, since migrations have transactions
/// too. A broker that does not get the lock returns the connection while it waits: behind a pooler, waiting brokers
/// would otherwise take all connections from the one that works.
pub(super) async fn lock(store: &Store) -> Result<super::Loan<'_>, StoreError> {
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
        tokio::time::sleep(RETRY_LOCK).await;
    }
}

async fn migrate(connection: &mut Connection, schema: &str) -> Result<MigrationReport, StoreError> {
    prepare(connection, schema).await?;
    let mut report = MigrationReport::default();
    let mut stored = stored_parts(connection, schema).await?;
    if stored.is_empty() {
        begin(connection).await?;
        let created = create(connection, schema).await;
        end(connection, created).await?;
        report.created = true;
        stored = stored_parts(connection, schema).await?;
    }
    let included = stored.iter().find_map(|part| part.version).unwrap_or_default();
    (report.applied, report.version) = apply_migrations(connection, schema, included).await?;
    let mut due = Vec::new();
    for (name, sources) in PARTS {
        let hash = schema::hash(sources);
        let there = stored.iter().find(|part| part.part == name);
        let differs = there.is_none_or(|part| part.hash.as_ref() != Some(&hash));
        // After a migration in any case: it may have changed tables that functions use.
        if !differs && report.applied.is_empty() {
            continue;
        }
        match there {
            // A broker of that release runs beside this one, or will again.
            Some(part) if release::order(&part.release, release::OURS).is_gt() => {
                report.newer = Some(part.release.clone());
            }
            _ => due.push((name, sources)),
        }
    }
    if !due.is_empty() {
        begin(connection).await?;
        let replaced = replace_all(connection, schema, &due).await;
        end(connection, replaced).await?;
        report.replaced = due.iter().map(|(name, _)| (*name).to_owned()).collect();
    }
    Ok(report)
}

/// Refuses databases that cannot be used, and creates the schema.
async fn prepare(connection: &mut Connection, schema: &str) -> Result<(), StoreError> {
    // Keys, headers and texts are UTF-8: another encoding would refuse some of them, job by job.
    // CREATE SCHEMA … IF NOT EXISTS alone needs the right to create, even if the schema exists because an administrator
    // created it for a role without that right.
    let check = format!(
        "DO $$ BEGIN
            IF to_regclass('{schema}.schema_part') IS NULL THEN
                IF current_setting('server_encoding') <> 'UTF8' THEN
                    RAISE EXCEPTION 'the encoding of database % is %, and Howdah needs UTF8: create another database with createdb --encoding=UTF8 --template=template0',
                        quote_ident(current_database()), current_setting('server_encoding') USING ERRCODE = '22021';
                ELSIF num_nonnulls(to_regclass('{schema}.task_type'), to_regclass('{schema}.schema_history')) > 0 THEN
                    RAISE EXCEPTION 'schema {schema} of database % was made by a development version before 0.1.0, which cannot be upgraded: use another database or another schema (--schema), or drop it with all of its jobs (DROP SCHEMA {schema} CASCADE)',
                        quote_ident(current_database()) USING ERRCODE = '55000';
                END IF;
            END IF;
            IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA IF NOT EXISTS {schema}; END IF;
        END $$"
    );
    connection.batch(&check).await
}

/// The parts as the database has them; none if it is new.
async fn stored_parts(connection: &mut Connection, schema: &str) -> Result<Vec<StoredPart>, StoreError> {
    let there = format!("SELECT to_regclass('{schema}.schema_part') IS NOT NULL");
    if !connection.ask(&there).await? {
        return Ok(Vec::new());
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
    Ok(parts.collect())
}

/// Creates everything.
async fn create(connection: &mut Connection, schema: &str) -> Result<(), StoreError> {
    apply(connection, schema, &[schema::VALUES, schema::TABLES]).await?;
    let (release, version) = (release::OURS, migrations(schema)?.last().map_or(0, Migration::version));
    let tables =
        format!("INSERT INTO {schema}.schema_part (part, version, release) VALUES ('tables', {version}, '{release}')");
    connection.batch(&tables).await?;
    replace_all(connection, schema, &PARTS).await
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
            let (path, result) = (source.path, connection.batch(&in_schema(&source.text(), schema)).await);
            result.map_err(|error| match error {
                StoreError::Refused(text) | StoreError::Taken(text) => StoreError::Refused(format!("{path}: {text}")),
                StoreError::RolledBack(text) => StoreError::RolledBack(format!("{path}: {text}")),
                other => other,
            })?;
        }
    }
    Ok(())
}

/// Begins a transaction in which a schema is created or replaced.
async fn begin(connection: &mut Connection) -> Result<(), StoreError> {
    connection.batch("BEGIN").await?;
    // Replacing a view waits for transactions that have read it, and all readers wait behind: not for longer than a
    // minute.
    let local = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
                 SET LOCAL lock_timeout = '1min'; SET LOCAL search_path = pg_catalog, pg_temp";
    connection.batch(local).await
}

/// Commits if there was no error; otherwise rolls back.
async fn end(connection: &mut Connection, result: Result<(), StoreError>) -> Result<(), StoreError> {
    match result {
        Ok(()) => connection.batch("COMMIT").await,
        Err(error) => {
            connection.roll_back().await;
            Err(error)
        }
    }
}

fn migrations(schema: &str) -> Result<Vec<Migration>, StoreError> {
    let unapplied = |(name, sql): &(&str, &str)| Migration::unapplied(name, &in_schema(sql, schema));
    let migrations = schema::MIGRATIONS.iter().map(unapplied).collect::<Result<_, _>>();
    migrations.map_err(|error| StoreError::Refused(error.to_string()))
}

/// Applies the missing numbered migrations. Returns their names, and the version of the last one. Migrations that the
/// tables included when they were created count as applied. They are recorded after that transaction, since refinery
/// has its own.
async fn apply_migrations(
    connection: &mut Connection,
    schema: &str,
    included: u32,
) -> Result<(Vec<String>, u32), StoreError> {
    let migrations = migrations(schema)?;
    let mut applied = Vec::new();
    for target in [Target::FakeVersion(included as _), Target::Latest] {
        let mut runner = Runner::new(&migrations).set_abort_divergent(true).set_abort_missing(false).set_target(target);
        runner.set_migration_table_name(format!("{schema}.schema_history"));
        let report = runner
            .run_async(connection.client_mut())
            .await
            .map_err(|error| StoreError::Refused(crate::error::describe(&error)))?;
        applied.extend(report.applied_migrations().iter().map(ToString::to_string));
    }
    Ok((applied, migrations.last().map_or(0, |m| m.version() as u32)))
}
