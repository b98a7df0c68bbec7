//! Tests prepared transactions (two-phase commit).

use crate::support::*;

#[tokio::test]
async fn jobs_of_a_prepared_transaction_run_after_its_commit_without_a_notification() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("idle").await;
    let mut others = broker.worker("keyed").await;
    let client = broker.database.connect().await;
    broker.sql("CREATE TABLE changes (n integer); SELECT howdah.on_change('changes', 'idle')").await;
    broker.enqueue_all([new_job("settled", ""), new_job("settled", "").key("k")]).await;
    let jobs = broker.pull("settled").up_to(2).await;
    broker.enqueue(new_job("settled", "").key("k").replace()).await;
    let settles = jobs.iter().map(|job| format!("SELECT howdah.complete({}, {});", job.id, job.token));
    let sql = format!(
        "BEGIN; SET LOCAL howdah.notify = off;
         SELECT howdah.enqueue('idle', 'plain');
         SELECT howdah.enqueue('keyed', 'x', key => 'k', limit_key => 'l');
         SELECT howdah.enqueue_many('idle', ARRAY['many']);
         INSERT INTO changes VALUES (1);
         {} PREPARE TRANSACTION 'two phases'",
        settles.collect::<String>()
    );
    client.batch_execute(&sql).await.unwrap();
    client.batch_execute("COMMIT PREPARED 'two phases'").await.unwrap();
    assert_eq!(worker.take(3).await.len(), 3);
    assert_eq!(&others.next().await.payload[..], b"x");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history").await, 2);
    assert_eq!(broker.pull("settled").await.len(), 1);
    // The setting `howdah.notify = off` ends with its transaction.
    client.batch_execute("SELECT howdah.enqueue('idle', 'after')").await.unwrap();
    assert_eq!(&worker.next().await.payload[..], b"after");
}
