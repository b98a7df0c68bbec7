//! One connection of the pool: statements are prepared once, every wait has a deadline, and it knows whether it can be
//! used again.

use std::{mem, time::Duration};

use tokio_postgres::{Client, Row, SimpleQueryMessage, error::SqlState, types::ToSql};

use super::{
    error::{StoreError, ends_connection},
    session::Session,
    statement::Statement,
};

/// A parameter of a statement.
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
}

impl Connection {
    pub(super) fn new(client: Client, schema: String, session: Session, timeout: Duration) -> Self {
        Self { client, schema, session, timeout, broken: false }
    }

    /// Whether the pool must drop it.
    pub(super) fn is_broken(&self) -> bool {
        self.broken || self.client.is_closed()
    }

    /// Runs a statement; returns all of its rows.
    pub(super) async fn query(&mut self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        // Until the statement has succeeded the connection counts as broken: a caller that goes away in the middle must
        // not return a connection with a pending answer.
        let good = !mem::replace(&mut self.broken, true);
        let timeout = self.timeout;
        let work = self.session.query(&self.client, &self.schema, statement, params);
        let result = tokio::time::timeout(timeout, work).await;
        match result {
            Ok(Ok(rows)) => {
                self.broken = !good;
                Ok(rows)
            }
            Ok(Err(error)) => {
                self.broken = !good || ends_connection(&error);
                Err(StoreError::of(&error))
            }
            Err(_) => Err(StoreError::Unknown(format!("no answer within {timeout:?}").into())),
        }
    }

    /// Runs a statement that returns exactly one row.
    pub(super) async fn query_one(&mut self, statement: Statement, params: Params<'_>) -> Result<Row, StoreError> {
        let rows = self.query(statement, params).await?;
        rows.into_iter()
            .next()
            .ok_or_else(|| StoreError::Refused(format!("{} returned no row", statement.name()).into()))
    }

    /// Runs fixed SQL without parameters: BEGIN, COMMIT, SET.
    pub(super) async fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.simple(sql).await.map(drop)
    }

    /// Runs fixed SQL in a transaction; false if it failed with one of these codes.
    pub(super) async fn try_batch(&mut self, sql: &str, codes: &[SqlState]) -> Result<bool, StoreError> {
        Ok(self.simple_or(sql, codes).await?.is_some())
    }

    /// Runs fixed SQL that answers yes or no.
    pub(super) async fn ask(&mut self, sql: &str) -> Result<bool, StoreError> {
        let messages = self.simple(sql).await?;
        Ok(messages.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))))
    }

    /// Runs fixed SQL; returns its rows as texts.
    pub(super) async fn texts(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, StoreError> {
        let messages = self.simple(sql).await?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
            _ => None,
        });
        Ok(rows.collect())
    }

    async fn simple(&mut self, sql: &str) -> Result<Vec<SimpleQueryMessage>, StoreError> {
        self.simple_or(sql, &[]).await?.ok_or_else(|| StoreError::Refused("no answer".into()))
    }

    /// `None`: it failed with one of these codes.
    async fn simple_or(
        &mut self,
        sql: &str,
        codes: &[SqlState],
    ) -> Result<Option<Vec<SimpleQueryMessage>>, StoreError> {
        // As long as nobody knows how it ends, the connection is of no use to others: a caller that goes away while BEGIN is
        // on its way leaves an open transaction.
        let was_broken = mem::replace(&mut self.broken, true);
        let sql = self.session.batch(sql);
        match tokio::time::timeout(self.timeout, self.client.simple_query(&sql)).await {
            Ok(Ok(messages)) => {
                self.broken = was_broken;
                Ok(Some(messages))
            }
            Ok(Err(error)) if error.code().is_some_and(|code| codes.contains(code)) => {
                self.broken = was_broken;
                Ok(None)
            }
            Ok(Err(error)) => {
                self.broken = was_broken || ends_connection(&error);
                Err(StoreError::of(&error))
            }
            Err(_) => Err(StoreError::Unknown(format!("no answer within {:?}", self.timeout).into())),
        }
    }

    /// Ends a transaction after an error. If that fails, the connection is dropped.
    pub(super) async fn roll_back(&mut self) {
        if self.batch("ROLLBACK").await.is_err() {
            self.broken = true;
        }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The connection must not be used again: its session was changed.
    pub(super) fn retire(&mut self) {
        self.broken = true;
    }
}
