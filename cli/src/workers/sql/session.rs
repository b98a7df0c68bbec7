//! One job on one connection: the session learns the job's id, runs the text, and is reset for the next job.

use bytes::Bytes;
use tokio::time::timeout;

use super::{
    PREPARE_WITHIN,
    collected::{Collected, TypeNames},
    database::{Connection, Database},
    options::Options,
    wire::{Broken, Finished, Message},
};
use crate::workers::attempt::Attempt;

/// Types below this id are built in, and never change.
const FIRST_OWN_TYPE: u32 = 16_384;
/// The most names of types that are kept.
const TYPES_KEPT: usize = 10_000;

/// Why there is no result.
#[derive(Debug)]
pub(super) enum Stop {
    /// A statement failed.
    Problem { text: String, is_final: bool, is_passing: bool, is_cancelled: bool },
    /// A transaction was left open.
    Open,
    /// A statement made the server use this encoding.
    Encoding(String),
    /// The result is too large.
    TooLarge,
    /// The statement is a COPY to or from the client.
    Copy,
    /// The connection has ended.
    Lost(String),
}

impl Stop {
    /// Whether the connection can be used again.
    pub(super) fn leaves_connection(&self) -> bool {
        matches!(self, Self::Problem { .. } | Self::Open | Self::Encoding(_))
    }
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::TooLarge => Self::TooLarge,
            Broken::Copy => Self::Copy,
            broken => Self::Lost(broken.describe()),
        }
    }
}

impl Broken {
    /// As text for people.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Lost(error) => error.to_string(),
            Self::Ended(problem) => problem.describe(""),
            Self::TooLarge => "a message of the server is too large".into(),
            Self::Copy => "the server wants to copy".into(),
        }
    }
}

/// A connection whose session knows the job: an idle one, or else a new one. An idle one may have died; then nothing of
/// the job was sent.
pub(super) async fn begin(database: &Database, attempt: &Attempt, most: usize) -> Result<Connection, String> {
    while let Some(mut connection) = database.take() {
        let told = timeout(PREPARE_WITHIN, tell(&mut connection, database, attempt)).await;
        if let Ok(Ok(())) = told {
            return Ok(connection);
        }
    }
    let mut connection = database.connect(most).await?;
    match timeout(PREPARE_WITHIN, tell(&mut connection, database, attempt)).await {
        Ok(Ok(())) => Ok(connection),
        Ok(Err(problem)) => Err(problem),
        Err(_) => Err(format!("no answer within {PREPARE_WITHIN:?}")),
    }
}

/// Sets the job's id in the session: functions of the database read `howdah.job_id`.
async fn tell(connection: &mut Connection, database: &Database, attempt: &Attempt) -> Result<(), String> {
    let mut settings = vec![
        ("howdah.job_id", attempt.id.to_string()),
        ("howdah.task_type", attempt.task_type.clone()),
        ("howdah.attempt", attempt.attempt.to_string()),
    ];
    if !database.is_named() {
        settings.push(("application_name", format!("howdah job {}", attempt.id)));
    }
    if connection.looks_for_us {
        settings.push(("client_connection_check_interval", "5s".into()));
    }
    let calls: Vec<String> = settings
        .iter()
        .map(|(name, value)| format!("pg_catalog.set_config('{name}', '{}', false)", value.replace('\'', "''")))
        .collect();
    let finished = connection.wire.query(&format!("SELECT {}", calls.join(", ")), |_| Ok(())).await;
    match finished.map_err(Broken::describe)?.problem {
        None => Ok(()),
        Some(problem) => Err(problem.describe("")),
    }
}

/// Runs the text, and returns its result.
pub(super) async fn run(
    connection: &mut Connection,
    database: &Database,
    options: &Options,
    sql: &str,
    most: usize,
) -> Result<Bytes, Stop> {
    let mut collected = Collected::new(options.format.clone(), most);
    let finished = connection.wire.query(sql, |message| collected.take(message)).await?;
    if let Some(problem) = finished.problem {
        return Err(Stop::Problem {
            text: problem.describe(sql),
            is_final: problem.is_final(),
            is_passing: problem.is_passing(),
            is_cancelled: problem.is_cancelled(),
        });
    }
    if connection.wire.in_transaction() {
        return Err(Stop::Open);
    }
    if let Some(encoding) = finished.encoding {
        return Err(Stop::Encoding(encoding));
    }
    let types = type_names(connection, database, collected.types()).await;
    Ok(collected.finish(&types))
}

/// Names of types. If the server does not answer they stay numbers: the job is already done.
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
    let mut found = Vec::new();
    let asked = connection.wire.query(&sql, |message| {
        if let Message::Row(row) = message {
            found.extend(row.values().next().flatten().map(|name| String::from_utf8_lossy(&name).into_owned()));
        }
        Ok(())
    });
    let is_answered = matches!(timeout(PREPARE_WITHIN, asked).await, Ok(Ok(Finished { problem: None, .. })));
    if is_answered && found.len() == missing.len() {
        let mut known = database.types.lock();
        for (id, name) in missing.into_iter().zip(found) {
            if id.0 < FIRST_OWN_TYPE && known.len() < TYPES_KEPT {
                known.insert(id, name.clone());
            }
            names.insert(id, name);
        }
    }
    names
}

/// Resets the session, and returns its connection to the pool. False: that failed, and the connection was closed.
pub(super) async fn clean(mut connection: Connection, database: &Database) -> bool {
    let roll_back = connection.wire.in_transaction().then_some("ROLLBACK");
    for sql in roll_back.into_iter().chain(["DISCARD ALL"]) {
        if !matches!(connection.wire.query(sql, |_| Ok(())).await, Ok(Finished { problem: None, .. })) {
            return false;
        }
    }
    database.put(connection);
    true
}
