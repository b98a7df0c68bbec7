//! Tests timeouts that a role or database sets for transactions.

use super::*;

/// Whether Postgres has the setting `transaction_timeout`, which is new in Postgres 17.
pub(crate) async fn knows_transaction_timeout(database: &TestDatabase) -> bool {
    let version = database.count("SELECT current_setting('server_version_num')::bigint").await;
    if version < 170_000 {
        eprintln!("left out: transaction_timeout needs Postgres 17, and this is {version}");
    }
    version >= 170_000
}

pub(crate) async fn set_timeout(database: &TestDatabase, timeout: &str) {
    let set = format!(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET transaction_timeout = ''{timeout}''', current_database()); END $$"
    );
    database.sql(&set).await;
}

#[tokio::test]
async fn a_transaction_timeout_of_the_database_ends_neither_a_wait_for_a_lock_nor_a_migration() {
    let database = database().await;
    if !knows_transaction_timeout(&database).await {
        return;
    }
    set_timeout(&database, "100ms").await;
    let broker = TestBroker::on(&database).await;
    broker.enqueue("t").key("k").outcome().await;
    let mut holder = database.connect().await;
    holder.batch_execute("SET transaction_timeout = 0").await.unwrap();
    let transaction = holder.transaction().await.unwrap();
    transaction.execute("SELECT 1 FROM howdah.job_key FOR UPDATE", &[]).await.unwrap();
    let waiting = tokio::spawn(broker.enqueue("t").key("k").answer());
    // Holds the lock for longer than the transaction timeout.
    transaction.execute("SELECT pg_sleep(1)", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    waiting.await.unwrap().expect("stored, or the job that has the key");
    let empty = database.empty("timeout", "").await;
    set_timeout(&empty, "20ms").await;
    let broker = TestBroker::on(&empty).await;
    broker.enqueue("t").outcome().await;
}
