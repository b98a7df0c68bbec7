//! Transactions of several statements.

use std::{
    future::Future,
    ops::{Deref, DerefMut},
    time::{Duration, Instant},
};

use tokio_postgres::Row;

use super::{Connection, Lane, Loan, LockWait, Statement, Store, StoreError, connection::Params};

/// An open transaction, on which statements run as on its connection. After an error of a statement, the transaction can
/// only be rolled back. A drop without commit closes the connection, so Postgres rolls back.
pub(super) struct Transaction<'a> {
    connection: Loan<'a>,
    open: bool,
}

/// Maximum attempts of a transaction that is rolled back because of a conflict, such as a deadlock.
const TRIES: usize = 5;

/// Retries a transaction that was rolled back because of a conflict with another transaction.
pub(super) async fn retry_conflicts<T, F>(mut run: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for _ in 1..TRIES {
        match run().await {
            Err(StoreError::Conflict(problem)) => {
                tracing::debug!(%problem, "transaction conflict; retrying");
            }
            other => return other,
        }
    }
    run().await
}

/// Runs a transaction of an operator's call. Retries conflicts as `retry_conflicts` does. While a lock of another
/// transaction blocks it, retries it in side lane `Operate` until the database timeout.
pub(super) async fn retry_while_locked_in_side_lane<T, F>(
    store: &Store,
    run: impl Fn(Store) -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    match retry_conflicts(|| run(store.clone())).await {
        Err(StoreError::Locked(_)) => {}
        other => return other,
    }
    let until = Instant::now() + store.timeout;
    let side_lane_store = store.side_lane(Lane::Operate, LockWait::Long);
    let mut holders = None;
    loop {
        let (result, found) =
            store.with_holders(Lane::Operate, Box::pin(retry_conflicts(|| run(side_lane_store.clone())))).await;
        holders = found.or(holders);
        match result {
            Err(StoreError::Locked(_)) if Instant::now() < until => {}
            Err(StoreError::Locked(cause)) => return Err(StoreError::Locked(holders.map_or(cause, Into::into))),
            other => return other,
        }
    }
}

impl Store {
    /// Begins a transaction on a connection of the hot pool.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        Self::begin_on(self.hot().await?).await
    }

    /// Begins a transaction on a connection of the general pool, where the planner is unrestricted.
    pub(super) async fn begin_general(&self) -> Result<Transaction<'_>, StoreError> {
        Self::begin_on(self.general().await?).await
    }

    /// Runs a statement of a maintenance task with a longer timeout than usual.
    pub(super) async fn query_within(
        &self,
        longest: Duration,
        statement: Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut transaction = self.begin_general().await?;
        transaction.batch(&format!("SET LOCAL statement_timeout = {}", longest.as_millis())).await?;
        transaction.set_timeout(longest);
        let rows = transaction.query(statement, params).await;
        transaction.set_timeout(self.timeout);
        let rows = rows?;
        transaction.commit().await?;
        Ok(rows)
    }

    pub(super) async fn begin_on(mut connection: Loan<'_>) -> Result<Transaction<'_>, StoreError> {
        connection.batch("BEGIN").await?;
        Ok(Transaction { connection, open: true })
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Transaction<'_> {
    /// Rolls the transaction back. The connection can be reused.
    pub(super) async fn roll_back(mut self) {
        self.connection.roll_back().await;
        self.open = false;
    }

    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        self.connection.batch("COMMIT").await?;
        self.open = false;
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.open {
            self.connection.mark_broken();
        }
    }
}
