//! Tests that the audit log records changes that SQL functions make to jobs.

use super::*;

#[tokio::test]
async fn functions_record_the_role_of_the_session_in_its_transaction() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all(["a"; 3]).await;
    let mut worker = broker.worker("b").await;
    let leased = broker.enqueue("b").await;
    worker.next().await;
    let client = broker.database.connect().await;
    let dead = broker.enqueue("c").delay(HOUR).await;
    client
        .batch_execute(&format!(
            "BEGIN;
             SET LOCAL \"howdah.reason\" = 'moved';
             SELECT howdah.cancel({}), howdah.reprioritize({}, 3);
             COMMIT;
             BEGIN; SELECT howdah.cancel({}); ROLLBACK;
             SELECT howdah.cancel(0), howdah.retry_now({dead}), howdah.end_lease({leased});",
            ids[0], ids[1], ids[2]
        ))
        .await
        .expect("calls");
    let rows = entries(&broker.database).await;
    let words: Vec<_> = rows.iter().map(|r| (&*r.method, &*r.types[0], r.ids[0].clone(), &*r.reason)).collect();
    assert_eq!(
        words,
        [
            ("howdah.cancel", "a", ids[0].to_string(), "moved"),
            ("howdah.reprioritize", "a", ids[1].to_string(), "moved"),
            ("howdah.retry_now", "c", dead.to_string(), ""),
            ("howdah.end_lease", "b", leased.to_string(), ""),
        ]
    );
    let user: String = client.query_one("SELECT 'sql:' || session_user", &[]).await.expect("a name").get(0);
    assert!(rows.iter().all(|row| row.principal == user), "{rows:?}");
}

#[tokio::test]
async fn grants_are_recorded_if_they_change_something() {
    let database = database().await;
    let client = database.connect().await;
    client
        .batch_execute(
            "BEGIN;
             SET LOCAL \"howdah.reason\" = 'a new shop';
             SELECT howdah.grant_types('shop', 'enqueue', 'order.*');
             SELECT howdah.grant_types('shop', 'enqueue', 'order.*');
             COMMIT;
             BEGIN; SELECT howdah.grant_types('shop', 'work', 'order.*'); ROLLBACK;
             SELECT howdah.revoke_types('shop', 'enqueue', 'order.*');
             SELECT howdah.revoke_types('shop', 'enqueue', 'order.*');",
        )
        .await
        .expect("calls");
    let rows = entries(&database).await;
    let words: Vec<_> = rows.iter().map(|r| (&*r.method, &*r.types[0], &*r.ids[0], &*r.reason)).collect();
    let grant = "shop enqueue:order.*";
    assert_eq!(
        words,
        [("howdah.grant_types", "order.*", grant, "a new shop"), ("howdah.revoke_types", "order.*", grant, ""),]
    );
    let user: String = client.query_one("SELECT 'sql:' || session_user", &[]).await.expect("a name").get(0);
    assert!(rows.iter().all(|row| row.principal == user), "{rows:?}");
}
