//! Several statements in one transaction.

use std::future::Future;

use tokio_postgres::Row;

use super::{Loan, Statement, Store, StoreError, connection::Params};

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

impl Store {
    /// Begins a transaction, on a connection of the hot pool.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, StoreError> {
        let mut connection = self.hot().await?;
        connection.batch("BEGIN").await?;
        Ok(Transaction { connection, open: true })
    }
}

impl Transaction<'_> {
    /// Runs a statement in it. After an error it cannot be used any more.
    pub(super) async fn query(&mut self, statement: Statement, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        self.connection.query(statement, params).await
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
