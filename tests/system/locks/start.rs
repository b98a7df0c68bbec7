//! Tests the start of a broker while other transactions hold locks that it needs.

use howdah_cli::postgres::Cluster;

use crate::support::*;

/// Waits until a statement that started after this time waits for a lock. Returns the start time of the statement.
async fn until_one_waits(database: &TestDatabase, after: &str) -> String {
    let waits = format!(
        "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query_start > '{after}'"
    );
    let client = database.connect().await;
    let began = format!("SELECT max(query_start)::text {waits}");
    let mut seen = None;
    eventually("a statement that waits", async || {
        seen = client.query_one(&began, &[]).await.expect(&began).get::<_, Option<String>>(0);
        seen.is_some()
    })
    .await;
    seen.expect("a time")
}

#[tokio::test]
async fn a_broker_starts_though_the_commit_of_a_notification_in_another_database_takes_a_while() {
    // With a missing synchronous standby, a synchronous commit waits forever. With fsync off, Postgres would not wait.
    let mut config = cluster_config();
    config.fsync = true;
    config.settings.push(("synchronous_standby_names".into(), "nobody".into()));
    config.settings.push(("synchronous_commit".into(), "local".into()));
    let cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("mail").await.expect("a database");
    let database = TestDatabase { url: cluster.url("mail") };
    TestBroker::on(&database).await.stop().await;

    let other = TestDatabase { url: cluster.url("postgres") }.connect().await;
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).await.expect("a pid").get(0);
    let notify = "SET synchronous_commit = on; CREATE TABLE written (); NOTIFY somebody";
    let committing = tokio::spawn(async move { other.batch_execute(notify).await });
    let hangs = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    database.until("a commit that waits for the standby", hangs).await;

    let mut starting = Box::pin(TestBroker::on(&database));
    let twice = async {
        let first = until_one_waits(&database, "-infinity").await;
        until_one_waits(&database, &first).await
    };
    tokio::select! {
        _ = twice => {}
        _ = &mut starting => panic!("the broker started without waiting for the notification"),
    }
    database.sql(&format!("SELECT pg_cancel_backend({pid})")).await;
    with_timeout("the end of the commit", committing).await.expect("no panic").expect("a notification");
    let broker = starting.await;
    broker.enqueue("t").await;
    broker.worker("t").window(1).await.next().await;
    broker.stop().await;
}
