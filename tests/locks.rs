//! A transaction that somebody left open, and everybody else: who does not need what it has locked goes on, and who does
//! is told by whom it is locked, or goes on when the lock has gone.

mod brokers; // the row of a broker
mod claims; // jobs on their way to workers
mod clock; // what happens by the clock, calls of operators, new task types
mod enqueue; // jobs with locked keys
pub(crate) mod matrix; // each thing that may be held, and everything else
mod operators; // settings, schedules, tokens
mod settle; // outcomes of locked jobs
mod start; // a broker that begins

use tokio_postgres::Client;

use crate::support::*;

/// Somebody's transaction that is left open.
pub(crate) struct Open {
    client: Client,
    pid: i32,
}

impl Open {
    /// After these statements, on a connection with this name.
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
