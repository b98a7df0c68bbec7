//! Several statements that take effect together.

use std::future::Future;

use tokio_postgres::Row;

use super::{Loan, Statement, Store, StoreError, connection::Params};

/// A transaction that is under way. Dropped, it is rolled back with its connection.
pub(super) struct Transaction<'a> {
    connection: Loan<'a>,
    open: bool,
}

/// What lost against another transaction (a deadlock) is tried so often.
const TRIES: usize = 5;

/// Runs something again that lost against another transaction: it was rolled back.
pub(super) async fn until_it_wins<T, F>(mut run: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for _ in 1..TRIES {
        match run().await {
            Err(StoreError::Conflict(problem)) => tracing::debug!(%problem, "tried again"),
            other => return other,
        }
    }
    run().await
}

impl Store {
    /// Begins one, on a connection of the hot statements.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        let mut connection = self.hot().await?;
        connection.batch("BEGIN").await?;
        Ok(Transaction { connection, open: true })
    }
}

impl Transaction<'_> {
    /// Runs a statement in it. After an error nothing more can be done in it.
    pub(super) async fn query(&mut self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.connection.query(statement, params).await
    }

    /// Makes it so.
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
