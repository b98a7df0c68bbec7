//! A gate for tests, which blocks a broker in the middle of a statement.

use super::TestDatabase;

/// A gate: a trigger that blocks some kinds of statements on a table until the test opens the gate.
pub struct Gate {
    holder: tokio_postgres::Client,
    table: String,
}

/// Creates a closed gate on a table, for statements of these kinds (such as `INSERT`).
pub async fn gate(database: &TestDatabase, table: &str, events: &str) -> Gate {
    let holder = database.connect().await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.expect("the gate");
    let is_shut =
        "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND mode = 'ExclusiveLock'
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    database
        .sql(&format!(
            "CREATE OR REPLACE FUNCTION howdah.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN WHILE ({is_shut}) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NULL; END $$;
             CREATE TRIGGER gate AFTER {events} ON howdah.{table} FOR EACH STATEMENT
             EXECUTE FUNCTION howdah.wait_at_gate()"
        ))
        .await;
    Gate { holder, table: table.to_owned() }
}

impl Gate {
    /// Waits until the gate blocks a statement.
    pub async fn reached(&self, database: &TestDatabase) {
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
                     AND wait_event = 'PgSleep' AND pid <> pg_backend_pid()";
        database.until(&format!("a statement at the gate of {}", self.table), waits).await;
    }

    /// Opens the gate and removes the gate's trigger.
    pub async fn open(self, database: &TestDatabase) {
        self.holder.batch_execute("SELECT pg_advisory_unlock(7)").await.expect("an open gate");
        let none =
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        database.until("an empty gate", none).await;
        database.sql(&format!("DROP TRIGGER gate ON howdah.{}", self.table)).await;
    }
}
