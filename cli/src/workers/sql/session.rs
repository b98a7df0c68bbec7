//! Runs one job on one connection: sets the id of the job in the session, runs the text, and resets the session for the next job.

use std::time::Duration;

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

/// Lowest object id of a user-defined type. Types with lower ids are built in and never change, so their names are cached.
const FIRST_OWN_TYPE: u32 = 16_384;
/// Maximum number of cached type names per database.
const TYPES_KEPT: usize = 10_000;

/// Reason why a job has no result.
#[derive(Debug)]
pub(super) enum Stop {
    /// A statement failed.
    Problem { text: String, is_final: bool, is_passing: bool, is_cancelled: bool },
    /// A transaction was left open.
    Open,
    /// A statement set this client encoding.
    Encoding(String),
    /// The result exceeds its maximum size.
    TooLarge,
    /// The statement is a COPY to or from the client.
    Copy,
    /// The connection has ended.
    Lost(String),
}

impl Stop {
    /// Returns whether the connection can be reused.
    pub(super) fn leaves_connection(&self) -> bool {
        matches!(self, Self::Problem { .. } | Self::Open | Self::Encoding(_))
    }
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::TooLarge => Self::TooLarge,
            Broken::Copy => Self::Copy,
            // transaction_timeout has passed: the server has rolled back the transaction and ended the session.
            Broken::Ended(problem) if problem.code == "25P04" => Self::Problem {
                text: format!(
                    "the transaction took longer than the role's transaction_timeout, and was rolled back: {}",
                    problem.describe("")
                ),
                is_final: false,
                is_passing: false,
                is_cancelled: false,
            },
            broken => Self::Lost(broken.describe()),
        }
    }
}

impl Broken {
    /// Formats the reason as text.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Lost(error) => error.to_string(),
            Self::Ended(problem) => problem.describe(""),
            Self::TooLarge => "the server sent a message that exceeds the maximum size".into(),
            Self::Copy => "the statement is a COPY to or from the client, which is not supported".into(),
        }
    }
}

/// Returns a connection whose session has the id of the job. Tries an idle connection first, then new connections for up to
/// `within`. If an idle connection turns out to be dead, no statement of the job has been sent on it.
pub(super) async fn begin(
    database: &Database,
    attempt: &Attempt,
    most: usize,
    within: Duration,
) -> Result<Connection, String> {
    while let Some(mut connection) = database.take() {
        let prepared = timeout(PREPARE_WITHIN, set_job_id(&mut connection, database, attempt)).await;
        if let Ok(Ok(())) = prepared {
            return Ok(connection);
        }
    }
    let connecting = async {
        loop {
            if let Ok(connection) = database.connect(most).await {
                return connection;
            }
        }
    };
    let Ok(mut connection) = timeout(within, connecting).await else {
        return Err(format!("{} (tried for {within:?})", database.problem()));
    };
    match timeout(PREPARE_WITHIN, set_job_id(&mut connection, database, attempt)).await {
        Ok(Ok(())) => Ok(connection),
        Ok(Err(problem)) => Err(problem),
        Err(_) => Err(format!("no answer within {PREPARE_WITHIN:?}")),
    }
}

/// Sets the id of the job in the session, as `howdah.job_id`, for functions of the database.
async fn set_job_id(connection: &mut Connection, database: &Database, attempt: &Attempt) -> Result<(), String> {
    let mut settings = vec![
        ("howdah.job_id", attempt.id.to_string()),
        ("howdah.task_type", attempt.task_type.clone()),
        ("howdah.attempt", attempt.attempt.to_string()),
    ];
    if !database.is_named() {
        settings.push(("application_name", format!("howdah job {}", attempt.id)));
    }
    if connection.is_probed {
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

/// Runs the text and returns its result.
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
    let mut found = Vec::new();
    let query = connection.wire.query(&sql, |message| {
        if let Message::Row(row) = message {
            found.extend(row.values().next().flatten().map(|name| String::from_utf8_lossy(&name).into_owned()));
        }
        Ok(())
    });
    let is_answered = matches!(timeout(PREPARE_WITHIN, query).await, Ok(Ok(Finished { problem: None, .. })));
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

/// Resets the session and puts the connection back into the pool. Returns false if that failed, and the connection was closed.
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
