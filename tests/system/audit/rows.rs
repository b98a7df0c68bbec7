//! Tests that no role can change audit entries, and that retention drops the entries by day.

use howdah_core::config::Config;
use howdah_engine::store::Store;
use tokio_postgres::error::SqlState;

use super::*;

#[tokio::test]
async fn rows_are_never_changed_or_deleted_not_even_by_the_owner() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("t").await;
    broker.cancel(&[id]).await;
    let client = broker.database.connect().await;
    let partition = "SELECT tableoid::regclass::text FROM howdah.audit";
    let partition: String = client.query_one(partition, &[]).await.expect("a row").get(0);
    for table in ["howdah.audit", &partition, "howdah.audit_default"] {
        client
            .batch_execute(&format!("INSERT INTO {table} SELECT * FROM howdah.audit WHERE false"))
            .await
            .expect("none");
        for change in
            [format!("TRUNCATE {table}"), format!("UPDATE {table} SET reason = ''"), format!("DELETE FROM {table}")]
        {
            let result = client.batch_execute(&change).await;
            // UPDATE and DELETE succeed in the empty default partition, because the trigger that refuses them runs for each
            // row.
            if table.ends_with("_default") && !change.starts_with("TRUNCATE") {
                result.expect(&change);
            } else {
                assert_eq!(result.expect_err(&change).code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{change}");
            }
        }
    }
    assert_eq!(entries(&broker.database).await.len(), 1);
}

#[tokio::test]
async fn audit_partitions_are_dropped_after_audit_days() {
    let database = database().await;
    let store = Store::new(&Config::new(&database.url)).expect("store");
    let old = "INSERT INTO howdah.audit (time, principal, peer, method, types, count, ids, reason)
               SELECT now() - n * interval '1 day', '', '', 'old', '{}', 1, '{}', '' FROM generate_series(0, 20) n";
    for day in [0, 1, 20] {
        let make = format!(
            "SELECT howdah.make_day_partition('audit', 'time', ((now() AT TIME ZONE 'UTC') - interval '{day} days')::date)"
        );
        database.connect().await.query(&make, &[]).await.expect(&make);
    }
    database.sql(old).await;
    // Entries of days without a partition are in the default partition. Retention empties the default partition when all of its
    // entries have expired.
    assert_eq!(store.drop_audit_partitions(10).await.expect("drop"), 1);
    assert_eq!(database.count("SELECT count(*) FROM howdah.audit").await, 20);
    assert_eq!(store.drop_audit_partitions(1).await.expect("drop"), 1);
    assert_eq!(database.count("SELECT count(*) FROM howdah.audit").await, 2);
    assert_eq!(store.drop_audit_partitions(1).await.expect("drop"), 0);
    let truncate = database.connect().await.batch_execute("TRUNCATE howdah.audit_default").await;
    assert_eq!(truncate.expect_err("refused").code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
}

#[tokio::test]
async fn rows_of_a_day_without_a_partition_stay_where_they_are() {
    let database = database().await;
    database
        .sql(
            "INSERT INTO howdah.audit (time, principal, peer, method, types, count, ids, reason)
         VALUES (now() + interval '9 days', '', '', 'early', '{}', 1, '{}', '')",
        )
        .await;
    let store = Store::new(&Config::new(&database.url)).expect("store");
    store.make_partitions(10).await.expect("partitions");
    assert_eq!(database.count("SELECT count(*) FROM howdah.audit_default").await, 1);
}
