//! Use of Postgres sessions. On a direct connection, the session keeps settings and prepared statements. A transaction
//! pooler may run each transaction in another session, so behind a pooler each transaction sets its own settings.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use futures::future::join3;
use tokio_postgres::{Client, Error, Row, error::SqlState, types::Type};

use super::{connection::Params, pool::Purpose, statement::Statement};

/// Kind of session.
pub(super) enum Session {
    /// Direct session: settings are applied once, and each statement is prepared once.
    Own { prepared: Vec<Option<tokio_postgres::Statement>> },
    /// Session of a transaction pooler: it belongs to this connection only until the transaction ends.
    Shared { begin: Begin, types: ParamTypes, in_transaction: bool },
}

/// Parameter types of each statement, read at its first use. With known types, a statement runs without being prepared.
pub(super) type ParamTypes = Arc<[OnceLock<Vec<Type>>]>;

/// Creates an empty cache of parameter types.
pub(super) fn param_types() -> ParamTypes {
    Statement::ALL.iter().map(|_| OnceLock::new()).collect()
}

/// SQL that gives a transaction the settings of a direct session.
pub(super) struct Begin {
    /// Begins the transaction and applies the settings.
    begin: String,
    /// `SET LOCAL` statements to put in front of an SQL text. Postgres runs the settings and the text as one implicit
    /// transaction.
    settings: String,
}

impl Begin {
    pub(super) fn new(purpose: Purpose, version: u32) -> Self {
        let settings = purpose.session(version).replace("SET ", "SET LOCAL ");
        Self { begin: format!("BEGIN ISOLATION LEVEL READ COMMITTED; {settings}"), settings }
    }
}

impl Session {
    pub(super) fn own() -> Self {
        Self::Own { prepared: vec![None; Statement::ALL.len()] }
    }

    /// Returns the SQL to send for a constant SQL text. Behind a pooler, `BEGIN` is followed by the session settings
    /// for the transaction. On a direct connection, the text is unchanged.
    pub(super) fn batch<'a>(&'a mut self, sql: &'a str) -> Cow<'a, str> {
        let Self::Shared { begin, in_transaction, .. } = self else { return sql.into() };
        match sql {
            "BEGIN" => {
                *in_transaction = true;
                begin.begin.as_str().into()
            }
            "COMMIT" | "ROLLBACK" => {
                *in_transaction = false;
                sql.into()
            }
            _ if *in_transaction || sql.is_empty() => sql.into(),
            // Postgres runs several statements in one simple query as one transaction.
            _ => format!("{}; {sql}", begin.settings).into(),
        }
    }

    pub(super) async fn query(
        &mut self,
        client: &Client,
        schema: &str,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let slot = statement as usize;
        match self {
            Self::Own { prepared } => {
                let prepared = match &prepared[slot] {
                    Some(prepared) => prepared.clone(),
                    None => prepared[slot].insert(client.prepare(&statement.text_in(schema)).await?).clone(),
                };
                client.query(&prepared, params).await
            }
            Self::Shared { begin, types, in_transaction } => {
                let begin = (!*in_transaction).then_some(begin.begin.as_str());
                let text = statement.text_in(schema);
                if types[slot].get().is_none() {
                    let asked = ask_types(client, begin, &text).await?;
                    // Another connection may have stored the same parameter types first, which is harmless.
                    let _ = types[slot].set(asked);
                }
                let types = types[slot].get().map(Vec::as_slice).unwrap_or_default();
                let params: Vec<_> = params.iter().copied().zip(types.iter().cloned()).collect();
                let Some(begin) = begin else { return client.query_typed(&text, &params).await };
                // BEGIN, the statement and COMMIT are pipelined: the client sends all three before it waits for
                // answers. If the statement fails, COMMIT rolls back.
                let (begun, rows, committed) = join3(
                    client.batch_execute(begin),
                    client.query_typed(&text, &params),
                    client.batch_execute("COMMIT"),
                )
                .await;
                begun?;
                let rows = rows?;
                committed?;
                Ok(rows)
            }
        }
    }
}

/// Maximum number of names that are tried for a prepared statement. The driver numbers them, and other clients of the pooler
/// with the same driver may have left statements with these names in its sessions.
const PREPARE_ATTEMPTS: usize = 100;

/// Reads the parameter types of a statement by preparing the statement. Preparing takes several round trips, so it runs
/// in a transaction, which a pooler keeps in one session.
async fn ask_types(client: &Client, begin: Option<&str>, text: &str) -> Result<Vec<Type>, Error> {
    let Some(begin) = begin else {
        return Ok(client.prepare(text).await?.params().to_vec());
    };
    let mut attempt = 0;
    loop {
        client.batch_execute(begin).await?;
        let prepared = client.prepare(text).await;
        let types = prepared.map(|prepared| prepared.params().to_vec());
        client.batch_execute("COMMIT").await?;
        attempt += 1;
        match types {
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_PSTATEMENT) && attempt < PREPARE_ATTEMPTS => {}
            types => return types,
        }
    }
}
