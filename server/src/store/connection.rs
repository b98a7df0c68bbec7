//! One connection of the pool: statements are prepared once, every wait has a deadline, and it knows whether it can be
//! used again.

use std::{mem, sync::Arc, time::Duration};

use tokio_postgres::{Client, Row, SimpleQueryMessage, error::SqlState, types::ToSql};

use super::{
    error::{StoreError, ends_connection},
    replica::LastChange,
    servers::Primary,
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
    primary: Primary,
    last_change: Arc<LastChange>,
    /// The open transaction changes something, and says so in the audit.
    changes: bool,
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
        Self { client, schema, session, timeout, broken: false, primary, last_change, changes: false }
    }

    /// Whether the pool must drop it.
    pub(super) fn is_broken(&self) -> bool {
        self.broken || self.client.is_closed() || self.primary.is_former()
    }

    /// Runs a statement; returns all of its rows.
    pub(super) async fn query(&mut self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let work = self.session.query(&self.client, &self.schema, statement, params);
        until_ended(&mut self.broken, self.timeout, &self.primary, work).await
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
        let done = self.simple(sql).await.map(drop);
        if sql == "COMMIT" && mem::take(&mut self.changes) {
            self.last_change.now();
        }
        done
    }

    /// What the open transaction changes is in the audit: whoever looks after its end must see it.
    pub(super) fn will_change(&mut self) {
        self.changes = true;
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
        let sql = self.session.batch(sql);
        let work = async {
            match self.client.simple_query(&sql).await {
                Err(error) if error.code().is_some_and(|code| codes.contains(code)) => Ok(None),
                messages => messages.map(Some),
            }
        };
        until_ended(&mut self.broken, self.timeout, &self.primary, work).await
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

/// Awaits an answer of Postgres. Until it is there the connection counts as broken: a caller that goes away in the middle must
/// not return a connection with a pending answer, or with the transaction that a BEGIN on its way opens.
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
        // What waits for its standby there waits in vain.
        () = primary.until_known_former() => return Err(StoreError::Unknown("another server was promoted".into())),
    };
    let result = result.map_err(|_| StoreError::Unknown(format!("no answer within {timeout:?}").into()))?;
    *broken = was_broken || result.as_ref().is_err_and(ends_connection);
    result.map_err(|error| StoreError::of(&error))
}
