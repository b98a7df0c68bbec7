//! Workers of a broker with two stores.

use std::collections::HashSet;

use howdah_proto::v1::{JobState, SettleStatus};

use super::calls::{enqueue_at, store_of, two};
use crate::support::*;

#[tokio::test]
async fn a_worker_gets_the_jobs_of_both_stores_and_settles_each_where_it_is() {
    let (shop, mail, broker) = two().await;
    let mut worker = broker.worker("t").window(10).await;
    shop.sql("SELECT howdah.enqueue('t')").await;
    mail.sql("SELECT howdah.enqueue('t')").await;
    let mut stores = HashSet::new();
    for _ in 0..2 {
        let job = worker.next().await;
        stores.insert(store_of(job.id));
        assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
        assert_eq!(broker.state(job.id).await, JobState::Succeeded);
    }
    assert_eq!(stores, HashSet::from([0, 1]));
    for database in [&shop, &mail] {
        assert_eq!(database.count("SELECT count(*) FROM howdah.history").await, 1);
    }
}

#[tokio::test]
async fn a_window_holds_for_the_jobs_of_all_stores_together_and_none_of_them_starves() {
    let (_shop, _mail, broker) = two().await;
    for _ in 0..20 {
        enqueue_at(&broker, "shop", "t").await;
        enqueue_at(&broker, "mail", "t").await;
    }
    let mut worker = broker.worker("t").window(3).await;
    let mut held = worker.take(3).await;
    let mut order = Vec::new();
    while order.len() < 40 {
        assert!(held.len() + worker.buffered() <= 3);
        let job = held.remove(0);
        order.push(store_of(job.id));
        worker.ack(&job).sent().await;
        if order.len() + held.len() < 40 {
            held.push(worker.next().await);
        }
    }
    // While both have jobs, each gets its turn.
    let first: i64 = order[..20].iter().sum();
    assert!((5..=15).contains(&first), "{order:?}");
}

#[tokio::test]
async fn a_worker_that_comes_back_keeps_its_leases_of_both_stores() {
    let (_shop, _mail, broker) = two().await;
    for store in ["shop", "mail"] {
        enqueue_at(&broker, store, "t").await;
    }
    let mut worker = broker.worker("t").window(2).await;
    let jobs = worker.take(2).await;
    let session = worker.welcome.session_id.clone();
    worker.vanish();
    let mut worker = broker.worker("t").window(2).resumes(&session, &jobs.iter().collect::<Vec<_>>()).await;
    assert_eq!(worker.welcome.kept.len(), 2, "{:?}", worker.welcome);
    for job in &jobs {
        assert_eq!(worker.ack(job).status().await, SettleStatus::Ok);
    }
}

#[tokio::test]
async fn jobs_are_pulled_from_both_stores() {
    let (_shop, _mail, broker) = two().await;
    for store in ["shop", "mail"] {
        enqueue_at(&broker, store, "t").await;
    }
    let mut stores = HashSet::new();
    for _ in 0..2 {
        let request = howdah_proto::v1::PullJobsRequest {
            task_types: vec!["t".into()],
            max_jobs: 1,
            wait: Some(wire(secs(5))),
            lease_duration: Some(wire(secs(60))),
        };
        let pulled = soon("a job", broker.workers().pull_jobs(request)).await.unwrap().into_inner();
        stores.extend(pulled.jobs.iter().map(|job| store_of(job.id)));
    }
    assert_eq!(stores, HashSet::from([0, 1]));
}
