//! Tests open transactions that hold locks. Callers that do not need the locked rows continue; other callers learn who holds
//! the lock, or continue when the lock is released.

mod brokers; // the row of a broker
mod claims; // claims of jobs
mod clock; // background tasks, calls of operators, new task types
mod enqueue; // jobs with locked keys
pub(crate) mod matrix; // every lock against every operation
mod operators; // settings, schedules, tokens
mod settle; // outcomes of locked jobs
mod start; // start of a broker

use tokio_postgres::Client;

use crate::support::*;

/// An open transaction that holds locks.
pub(crate) struct Open {
    client: Client,
    pid: i32,
}

impl Open {
    /// Opens a transaction on a connection with this application name, runs these statements and keeps the transaction
    /// open.
    pub(crate) async fn after(database: &TestDatabase, name: &str, sql: &str) -> Self {
        let client = database.connect().await;
        client.batch_execute(&format!("SET application_name = '{name}'; BEGIN; {sql}")).await.expect(sql);
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("a pid").get(0);
        Self { client, pid }
    }

    pub(crate) async fn commit(self) {
        self.client.batch_execute("COMMIT").await.expect("commit");
    }

    pub(crate) async fn roll_back(self) {
        self.client.batch_execute("ROLLBACK").await.expect("roll back");
    }
}
