//! Waiting for what must come. A test waits for a signal (a message, a line of output, the end of a call); what Postgres
//! does on the inside has none, so there `until` asks again until it is so.

use std::{
    future::{Future, poll_fn},
    time::Duration,
};

use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_postgres::{AsyncMessage, NoTls};

use super::TestDatabase;

/// The longest that anything may take in a test before it counts as hanging. Generous: machines are
/// slow at times, and no test measures time.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Between two questions to what has no signal. It bounds the load of asking; no test depends on it.
const PACE: Duration = Duration::from_millis(20);

/// Waits for something that must come.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not come in {PATIENCE:?}"))
}

/// Asks until the answer is yes. Only for what has no signal of its own: rows that a broker writes in its own time,
/// counters of metrics, the state of other processes.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let asking = async {
        loop {
            pace.tick().await;
            if is_so().await {
                return;
            }
        }
    };
    soon(what, asking).await;
}

/// Asks Postgres until it answers yes.
pub async fn until(database: &TestDatabase, what: &str, sql: &str) {
    until_on(&database.connect().await, what, sql).await;
}

/// The same on a connection that is there already.
pub async fn until_on(client: &tokio_postgres::Client, what: &str, sql: &str) {
    let statement = client.prepare(sql).await.expect(sql);
    eventually(what, async || client.query_one(&statement, &[]).await.expect(sql).get::<_, bool>(0)).await;
}

/// Waits until a count has begun and then stands still for three seconds. A flood that is held up has no signal: nothing
/// comes any more. Where the machine is so slow that it only seems so, it is looked at too soon, which fails no test.
pub async fn until_still(what: &str, count: impl Fn() -> u64) {
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut still) = (0, 0);
    while still < 3 {
        let begun = async {
            pace.tick().await;
            while count() == 0 {
                pace.tick().await;
            }
        };
        soon(what, begun).await;
        let now = count();
        still = if now == before { still + 1 } else { 0 };
        before = now;
    }
}

impl TestDatabase {
    /// Until a statement waits for a lock, which only the test can have: a broker's.
    pub async fn until_blocked(&self) {
        let sql = "SELECT count(*) > 0 FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until(self, "a statement that waits for a lock", sql).await;
    }
}

/// Changes of a table, as they are committed.
pub struct Changes {
    // As long as it is there, it listens.
    _client: tokio_postgres::Client,
    notifications: mpsc::UnboundedReceiver<()>,
}

impl TestDatabase {
    /// From now on. A trigger of the test's own notifies, in the transaction that makes the change.
    pub async fn changes(&self, table: &str) -> Changes {
        let (client, mut connection) = tokio_postgres::connect(&self.url, NoTls).await.expect("connect");
        let (send, notifications) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if matches!(message, AsyncMessage::Notification(_)) {
                    let _ = send.send(());
                }
            }
        });
        let trigger = format!(
            "CREATE OR REPLACE FUNCTION public.changed() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_notify('test_' || TG_TABLE_NAME, ''); RETURN NULL; END $$;
             CREATE TRIGGER test_changes AFTER INSERT OR UPDATE OR DELETE ON {table}
                 FOR EACH STATEMENT EXECUTE FUNCTION public.changed();
             LISTEN test_{}",
            table.trim_start_matches("howdah.")
        );
        client.batch_execute(&trigger).await.expect("a trigger");
        Changes { _client: client, notifications }
    }
}

impl Changes {
    /// The next one.
    pub async fn next(&mut self) {
        soon("a change", self.notifications.recv()).await.expect("a connection");
    }
}
