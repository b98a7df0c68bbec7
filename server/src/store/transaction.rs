//! Several statements in one transaction.

use std::{future::Future, time::Instant};

use tokio_postgres::Row;

use super::{Connection, Lane, Loan, Patience, Statement, Store, StoreError, connection::Params};

/// An open transaction. If it is dropped, it is rolled back with its connection.
pub(super) struct Transaction<'a> {
    connection: Loan<'a>,
    open: bool,
}

/// How often a transaction that lost against another one (a deadlock) is tried.
const TRIES: usize = 5;

/// Runs a transaction again if it lost against another one and was rolled back.
pub(super) async fn until_it_wins<T, F>(mut run: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for _ in 1..TRIES {
        match run().await {
            Err(StoreError::Conflict(problem)) => {
                tracing::debug!(%problem, "a transaction lost against another one; trying again");
            }
            other => return other,
        }
    }
    run().await
}

/// The same for a call of a person or program. If something that it needs is locked, it waits for that aside, for as
/// long as calls wait for Postgres.
pub(super) async fn until_unlocked<T, F>(store: &Store, run: impl Fn(Store) -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    match until_it_wins(|| run(store.clone())).await {
        Err(StoreError::Locked(_)) => {}
        other => return other,
    }
    let until = Instant::now() + store.timeout;
    let patient = store.aside(Lane::Operate, Patience::Long);
    let mut holders = None;
    loop {
        let (result, found) = store.with_holders(Lane::Operate, Box::pin(until_it_wins(|| run(patient.clone())))).await;
        holders = found.or(holders);
        match result {
            Err(StoreError::Locked(_)) if Instant::now() < until => {}
            Err(StoreError::Locked(cause)) => return Err(StoreError::Locked(holders.map_or(cause, Into::into))),
            other => return other,
        }
    }
}

impl Store {
    /// Begins a transaction, on a connection of the hot pool.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        Self::begin_on(self.hot().await?).await
    }

    /// Begins a transaction, on a connection on which the planner is free.
    pub(super) async fn begin_general(&self) -> Result<Transaction<'_>, StoreError> {
        Self::begin_on(self.general().await?).await
    }

    pub(super) async fn begin_on(mut connection: Loan<'_>) -> Result<Transaction<'_>, StoreError> {
        connection.batch("BEGIN").await?;
        Ok(Transaction { connection, open: true })
    }
}

impl Transaction<'_> {
    /// Its connection.
    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Runs a statement in it. After an error it cannot be used any more.
    pub(super) async fn query(&mut self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.connection.query(statement, params).await
    }

    /// Runs a statement that returns one row.
    pub(super) async fn query_one(&mut self, statement: Statement, params: Params<'_>) -> Result<Row, StoreError> {
        self.connection.query_one(statement, params).await
    }

    /// Rolls it back; its connection can be used again.
    pub(super) async fn roll_back(mut self) {
        self.connection.roll_back().await;
        self.open = false;
    }

    /// Commits it.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.connection.batch("COMMIT").await?;
        self.open = false;
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.open {
            self.connection.retire();
        }
    }
}
