//! Session of one job: sets the id of the job, runs its text, and resets the session for the next job.

use std::time::Duration;

use bytes::Bytes;
use howdah_client::Job;
use tokio::time::timeout;

use super::{
    collected::{Collected, TypeNames},
    database::{Connection, Database},
    options::Format,
    wire::Stop,
};

/// Time limit for the preparation of a job, and for the cleanup after it.
const PREPARE_WITHIN: Duration = Duration::from_secs(10);
/// Time for which a job waits for a database connection before it is snoozed.
const CONNECT_FOR: Duration = Duration::from_secs(10);
/// Lowest object id of a user-defined type. Types with lower ids are built in and never change, so their names are cached.
const FIRST_OWN_TYPE: u32 = 16_384;
/// Maximum number of cached type names per database.
const TYPES_KEPT: usize = 10_000;

/// Returns a connection whose session has the id of the job. Tries an idle connection first, then new connections for up to 10 s.
/// If an idle connection turns out to be dead, no statement of the job has been sent on it.
pub(super) async fn begin(database: &Database, job: &Job) -> Result<Connection, String> {
    while let Some(mut connection) = database.take() {
        if set_job_id(&mut connection, database, job).await.is_ok() {
            return Ok(connection);
        }
    }
    let connecting = async {
        loop {
            if let Ok(connection) = database.connect().await {
                return connection;
            }
        }
    };
    let Ok(mut connection) = timeout(CONNECT_FOR, connecting).await else {
        return Err(format!("{} (tried for {CONNECT_FOR:?})", database.problem()));
    };
    set_job_id(&mut connection, database, job).await?;
    Ok(connection)
}

/// Sets the id of the job in the session, as `howdah.job_id`, for functions of the database.
async fn set_job_id(connection: &mut Connection, database: &Database, job: &Job) -> Result<(), String> {
    let mut settings = vec![
        ("howdah.job_id", job.id.to_string()),
        ("howdah.task_type", job.task_type.clone()),
        ("howdah.attempt", job.attempt.to_string()),
    ];
    if !database.is_named {
        settings.push(("application_name", format!("howdah job {}", job.id)));
    }
    if connection.is_probed {
        settings.push(("client_connection_check_interval", "5s".into()));
    }
    let calls: Vec<String> = settings
        .iter()
        .map(|(name, value)| format!("pg_catalog.set_config('{name}', '{}', false)", value.replace('\'', "''")))
        .collect();
    match timeout(PREPARE_WITHIN, connection.wire.column(&format!("SELECT {}", calls.join(", ")))).await {
        Ok(set) => set.map(drop).map_err(|stop| stop.describe()),
        Err(_) => Err(format!("no answer within {PREPARE_WITHIN:?}")),
    }
}

/// Runs the text of a job, and returns its result in this format, of at most `max_result` bytes.
pub(super) async fn run(
    connection: &mut Connection,
    database: &Database,
    format: &Format,
    sql: &str,
    max_result: usize,
) -> Result<Bytes, Stop> {
    let mut collected = Collected::new(format.clone(), max_result);
    connection.wire.query(sql, |message| collected.take(message)).await?;
    let types = type_names(connection, database, collected.types()).await;
    Ok(collected.finish(&types))
}

/// Reads names of types. If the server does not answer, the result has type ids instead, because the job is already done.
async fn type_names(connection: &mut Connection, database: &Database, wanted: Vec<(u32, i32)>) -> TypeNames {
    let mut names: TypeNames = {
        let known = database.types.lock();
        wanted.iter().filter_map(|id| Some((*id, known.get(id)?.clone()))).collect()
    };
    let missing: Vec<(u32, i32)> = wanted.into_iter().filter(|id| !names.contains_key(id)).collect();
    if missing.is_empty() {
        return names;
    }
    let list = |part: fn(&(u32, i32)) -> String| missing.iter().map(part).collect::<Vec<_>>().join(",");
    let (ids, modifiers) = (list(|id| id.0.to_string()), list(|id| id.1.to_string()));
    let sql = format!(
        "SELECT pg_catalog.format_type(t.id, t.modifier) FROM ROWS FROM \
         (pg_catalog.unnest('{{{ids}}}'::pg_catalog.oid[]), pg_catalog.unnest('{{{modifiers}}}'::pg_catalog.int4[])) \
         WITH ORDINALITY AS t (id, modifier, n) ORDER BY t.n"
    );
    let found = match timeout(PREPARE_WITHIN, connection.wire.column(&sql)).await {
        Ok(Ok(found)) if found.len() == missing.len() => found,
        _ => return names,
    };
    let mut known = database.types.lock();
    for (id, name) in missing.into_iter().zip(found) {
        if id.0 < FIRST_OWN_TYPE && known.len() < TYPES_KEPT {
            known.insert(id, name.clone());
        }
        names.insert(id, name);
    }
    drop(known);
    names
}

/// Resets the session and keeps the connection for the next job, if possible.
pub(super) async fn end(mut connection: Connection, database: &Database) {
    if let Ok(Ok(())) = timeout(PREPARE_WITHIN, connection.wire.reset()).await {
        database.put(connection);
    } else {
        tracing::debug!("cannot reset a session; closing its connection");
    }
}
