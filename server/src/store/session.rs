//! The session behind a connection: our own, or a transaction pooler's. With a pooler, each transaction may get another
//! session, which knows nothing of the one before.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use futures::future::join3;
use tokio_postgres::{Client, Error, Row, types::Type};

use super::{connection::Params, pool::Purpose, statement::Statement};

/// The kind of session.
pub(super) enum Session {
    /// Our own: settings are made once, statements are prepared once.
    Own { prepared: Vec<Option<tokio_postgres::Statement>> },
    /// A transaction at a time.
    Shared { begin: Arc<Begin>, types: ParamTypes, in_transaction: bool },
}

/// The types of each statement's parameters, once they were asked for: then it need not be prepared.
pub(super) type ParamTypes = Arc<[OnceLock<Vec<Type>>]>;

/// No types were asked for yet.
pub(super) fn param_types() -> ParamTypes {
    Statement::ALL.iter().map(|_| OnceLock::new()).collect()
}

/// How a transaction gets the settings that a session of ours would have.
pub(super) struct Begin {
    /// Begins it.
    begin: String,
    /// Stands before texts that are a transaction of their own.
    settings: String,
}

impl Begin {
    pub(super) fn of(purpose: Purpose) -> Self {
        let settings = purpose.session().replace("SET ", "SET LOCAL ");
        Self { begin: format!("BEGIN ISOLATION LEVEL READ COMMITTED; {settings}"), settings }
    }
}

impl Session {
    pub(super) fn own() -> Self {
        Self::Own { prepared: vec![None; Statement::ALL.len()] }
    }

    /// A text without parameters, as this session needs it.
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
            // Statements that are sent as one text are one transaction.
            _ => format!("{}; {sql}", begin.settings).into(),
        }
    }

    /// Runs a statement.
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
                    // Another connection may have set them first, to the same.
                    let _ = types[slot].set(asked);
                }
                let types = types[slot].get().map(Vec::as_slice).unwrap_or_default();
                let params: Vec<_> = params.iter().copied().zip(types.iter().cloned()).collect();
                let Some(begin) = begin else { return client.query_typed(&text, &params).await };
                // Sent in this order without waiting in between. If the statement fails, COMMIT rolls back.
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

/// Prepares a statement, and deallocates it, in one transaction: so in one session.
async fn ask_types(client: &Client, begin: Option<&str>, text: &str) -> Result<Vec<Type>, Error> {
    let Some(begin) = begin else {
        return Ok(client.prepare(text).await?.params().to_vec());
    };
    client.batch_execute(begin).await?;
    let prepared = client.prepare(text).await;
    let types = prepared.map(|prepared| prepared.params().to_vec());
    client.batch_execute("COMMIT").await?;
    types
}
