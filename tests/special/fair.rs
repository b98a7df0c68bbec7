//! Fair keys: tenants take turns, however much one of them has waiting.

use howdah_proto::v1::NewJob;

use super::ids;
use crate::support::{PATIENCE, TestBroker, Worker, database, new_job};

fn of(tenant: &str) -> NewJob {
    NewJob { fair_key: tenant.into(), ..new_job("share", tenant.to_owned()) }
}

#[tokio::test]
async fn tenants_take_turns() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    ids(&broker, (0..50).map(|_| of("a")).collect()).await;
    ids(&broker, (0..3).map(|_| of("b")).collect()).await;
    ids(&broker, (0..3).map(|_| of("c")).collect()).await;
    let mut worker = Worker::connect(&broker.grpc, "share", 100).await;
    let mut first = Vec::new();
    for _ in 0..9 {
        first.push(String::from_utf8(worker.job().await.payload.to_vec()).unwrap());
    }
    for tenant in ["a", "b", "c"] {
        assert_eq!(first.iter().filter(|t| *t == tenant).count(), 3, "{first:?}");
    }
}

/// With one tenant's 100,000 jobs waiting and ninety-nine tenants arriving with 100 each, all of theirs are
/// among the next 20,000. (A million in the issue; the rule does not know how many there are.)
#[tokio::test]
async fn a_flood_of_one_tenant_does_not_hold_up_the_others() {
    let database = database().await;
    // For requests of ten thousand on a slow machine.
    let broker = TestBroker::start_with(&database, |config| config.database_timeout = PATIENCE).await;
    for _ in 0..10 {
        ids(&broker, (0..10_000).map(|_| of("flood")).collect()).await;
    }
    for tenant in 0..99 {
        ids(&broker, (0..100).map(|_| of(&format!("t{tenant}"))).collect()).await;
    }
    let among_the_next = database
        .count(
            "SELECT count(*) FROM (SELECT options FROM howdah.ready ORDER BY rank, id LIMIT 20000) r
             WHERE options ->> 'fair_key' <> 'flood'",
        )
        .await;
    assert_eq!(among_the_next, 9_900);
}

#[tokio::test]
async fn priority_goes_before_fairness() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    ids(&broker, (0..10).map(|_| of("a")).collect()).await;
    ids(&broker, vec![NewJob { priority: 5, ..of("b") }]).await;
    ids(&broker, vec![NewJob { priority: -5, ..of("a") }]).await;
    let mut worker = Worker::connect(&broker.grpc, "share", 100).await;
    let mut order = Vec::new();
    for _ in 0..12 {
        order.push(worker.job().await.payload);
    }
    assert_eq!(order[11], "b");
    assert!(order[..11].iter().all(|payload| payload == "a"));
}
