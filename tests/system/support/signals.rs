//! Functions that wait for events: a message, a line of output, the end of a call. Postgres sends no event when its state
//! changes, so `until` polls.

use std::{
    future::{Future, poll_fn},
    time::Duration,
};

use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_postgres::{AsyncMessage, NoTls};

use super::TestDatabase;

/// Timeout after which a test counts as hanging. The timeout is generous, because machines are slow at times and no test
/// measures time.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Polling interval, which limits the load that polling causes. No test depends on it.
const PACE: Duration = Duration::from_millis(20);

/// Waits for a future. After `PATIENCE`, fails the test with the message that `what` did not come.
pub async fn with_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not come in {PATIENCE:?}"))
}

/// Polls until `is_so` returns true. Use it only for state without an event: rows that a broker writes later, metrics, other
/// processes.
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
    with_timeout(what, asking).await;
}

/// Polls Postgres until the query returns true.
pub async fn until(database: &TestDatabase, what: &str, sql: &str) {
    until_on(&*database.shared().await, what, sql).await;
}

/// Polls on an existing connection until the query returns true.
pub async fn until_on(client: &tokio_postgres::Client, what: &str, sql: &str) {
    let statement = client.prepare(sql).await.expect(sql);
    eventually(what, async || client.query_one(&statement, &[]).await.expect(sql).get::<_, bool>(0)).await;
}

/// Waits until `count` is above 0 and has stayed constant for three seconds. A flood under backpressure sends no event at its
/// end. On a slow machine the wait may end too early, which fails no test.
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
        with_timeout(what, begun).await;
        let now = count();
        still = if now == before { still + 1 } else { 0 };
        before = now;
    }
}

impl TestDatabase {
    /// Waits until a broker's statement waits for a lock that the test holds.
    pub async fn until_blocked(&self) {
        let sql = "SELECT count(*) > 0 FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until(self, "a statement that waits for a lock", sql).await;
    }
}

/// Committed changes of a table, received as notifications.
pub struct Changes {
    // The listening connection; dropping it ends the subscription.
    _client: tokio_postgres::Client,
    notifications: mpsc::UnboundedReceiver<()>,
}

impl TestDatabase {
    /// Subscribes to changes of a table. A trigger notifies in the transaction of each change.
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
    /// Waits for the next change.
    pub async fn next(&mut self) {
        with_timeout("a change", self.notifications.recv()).await.expect("a connection");
    }
}
