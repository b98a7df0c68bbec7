//! A pooled connection, which prepares each statement once, limits every wait, and tracks whether the pool may reuse
//! the connection.

use std::{mem, sync::Arc, time::Duration};

use tokio_postgres::{Client, Row, SimpleQueryMessage, error::SqlState, types::ToSql};

use super::{
    error::{StoreError, ends_connection},
    replica::LastChange,
    rows::{self, FromRow},
    servers::{Lost, Primary},
    session::Session,
    sqlstate,
    statement::Statement,
};

/// Parameter of a statement.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);
/// Parameters of a statement.
pub(super) type Params<'a> = &'a [Param<'a>];

/// A connection with its prepared statements.
pub struct Connection {
    client: Client,
    schema: String,
    session: Session,
    timeout: Duration,
    broken: bool,
    primary: Primary,
    last_change: Arc<LastChange>,
    /// Whether the open transaction has written an audit row. Its commit then updates `last_change`.
    is_audited: bool,
}

impl Connection {
    pub(super) fn new(
        client: Client,
        schema: String,
        session: Session,
        timeout: Duration,
        primary: Primary,
        last_change: Arc<LastChange>,
    ) -> Self {
        Self { client, schema, session, timeout, broken: false, primary, last_change, is_audited: false }
    }

    /// Whether the pool must drop the connection.
    pub(super) fn is_broken(&self) -> bool {
        self.broken || self.client.is_closed() || self.primary.is_former()
    }

    /// Runs a statement and returns all of its rows.
    pub(super) async fn query(&mut self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let work = self.session.query(&self.client, &self.schema, statement, params);
        until_ended(&mut self.broken, self.timeout, &self.primary, work).await
    }

    /// Runs a statement that returns exactly one row. Fails if it returns none.
    pub(super) async fn query_one(&mut self, statement: Statement, params: Params<'_>) -> Result<Row, StoreError> {
        let rows = self.query(statement, params).await?;
        rows.into_iter()
            .next()
            .ok_or_else(|| StoreError::Refused(format!("statement {} returned no row", statement.name()).into()))
    }

    /// Runs a statement and returns its rows as values.
    pub(super) async fn list<T: FromRow>(
        &mut self,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<T>, StoreError> {
        Ok(rows::all(&self.query(statement, params).await?))
    }

    /// Runs a statement and returns its first row as a value. `None` if it returns no row.
    pub(super) async fn find<T: FromRow>(
        &mut self,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Option<T>, StoreError> {
        Ok(self.query(statement, params).await?.first().map(T::from_row))
    }

    /// Runs a statement that returns exactly one row, and returns the row as a value.
    pub(super) async fn one<T: FromRow>(&mut self, statement: Statement, params: Params<'_>) -> Result<T, StoreError> {
        Ok(T::from_row(&self.query_one(statement, params).await?))
    }

    /// Runs a statement whose rows do not matter.
    pub(super) async fn run(&mut self, statement: Statement, params: Params<'_>) -> Result<(), StoreError> {
        self.query(statement, params).await.map(drop)
    }

    /// Runs a statement that returns the rows that it has changed. False if it has changed none.
    pub(super) async fn changes(&mut self, statement: Statement, params: Params<'_>) -> Result<bool, StoreError> {
        Ok(!self.query(statement, params).await?.is_empty())
    }

    /// Runs fixed SQL without parameters, such as BEGIN, COMMIT or SET.
    pub(super) async fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        let done = self.simple(sql).await.map(drop);
        if sql == "COMMIT" && mem::take(&mut self.is_audited) {
            self.last_change.now();
        }
        done
    }

    /// Marks the open transaction as a change. After its commit, replicas are read only once they have replayed it.
    pub(super) fn mark_audited(&mut self) {
        self.is_audited = true;
    }

    /// Runs fixed SQL in a transaction. False if it failed with one of the given SQLSTATEs.
    pub(super) async fn try_batch(&mut self, sql: &str, codes: &[SqlState]) -> Result<bool, StoreError> {
        Ok(self.simple_or(sql, codes).await?.is_some())
    }

    /// Runs fixed SQL that returns one boolean.
    pub(super) async fn ask(&mut self, sql: &str) -> Result<bool, StoreError> {
        let messages = self.simple(sql).await?;
        Ok(messages.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))))
    }

    /// Runs fixed SQL and returns its rows as text.
    pub(super) async fn texts(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, StoreError> {
        let messages = self.simple(sql).await?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
            _ => None,
        });
        Ok(rows.collect())
    }

    async fn simple(&mut self, sql: &str) -> Result<Vec<SimpleQueryMessage>, StoreError> {
        self.simple_or(sql, &[]).await?.ok_or_else(|| StoreError::Refused("bug: fixed SQL returned no result".into()))
    }

    /// Runs fixed SQL. `None` if it failed with one of the given SQLSTATEs.
    async fn simple_or(
        &mut self,
        sql: &str,
        codes: &[SqlState],
    ) -> Result<Option<Vec<SimpleQueryMessage>>, StoreError> {
        let sql = self.session.batch(sql);
        let work = async {
            match self.client.simple_query(&sql).await {
                Err(error) if error.code().is_some_and(|code| codes.contains(code)) => Ok(None),
                messages => messages.map(Some),
            }
        };
        until_ended(&mut self.broken, self.timeout, &self.primary, work).await
    }

    /// Rolls back the open transaction. If that fails, the pool drops the connection.
    pub(super) async fn roll_back(&mut self) {
        if self.batch("ROLLBACK").await.is_err() {
            self.broken = true;
        }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Makes the pool drop the connection, because its session state was changed.
    pub(super) fn mark_broken(&mut self) {
        self.broken = true;
    }
}

/// Waits for an answer of Postgres. Until the answer arrives, the connection is marked as broken: after a cancellation
/// of the caller, the pool must not reuse a connection with a pending answer or an open transaction.
async fn until_ended<T>(
    broken: &mut bool,
    timeout: Duration,
    primary: &Primary,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    let was_broken = mem::replace(broken, true);
    let result = tokio::select! {
        biased;
        result = tokio::time::timeout(timeout, work) => result,
        lost = primary.until_lost() => return Err(StoreError::Unknown(match lost {
            // Waiting longer is pointless: on a former primary, a synchronous commit waits for a standby forever.
            Lost::Former => "another server was promoted".into(),
            Lost::Silent => "Postgres does not answer any more".into(),
        })),
    };
    let result = result.map_err(|_| StoreError::Unknown(format!("no answer within {timeout:?}").into()))?;
    *broken = was_broken || result.as_ref().is_err_and(ends_connection);
    if !result.as_ref().is_err_and(is_no_answer) {
        primary.breaker().answered();
    }
    result.map_err(|error| StoreError::from_postgres(&error))
}

/// Whether the error means that no server answers: the error has no SQLSTATE (the connection broke), or the server is
/// starting or stopping (SQLSTATE class 57P).
fn is_no_answer(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|code| sqlstate::ends_session(code.code()))
}
