//! Tests moving a task type while two brokers enqueue and run its jobs.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    calls::{enqueue_at, store_of},
    empty,
    moving::moved,
};
use crate::support::*;

/// Minimum number of jobs that each producer enqueues.
const JOBS: usize = 300;

/// Enqueues jobs one after another until it is stopped. Returns the number of jobs.
fn producer(service: Service, name: &'static str, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    tokio::spawn(async move {
        let mut nth = 0;
        while nth < JOBS || !stop.load(Ordering::Relaxed) {
            service.enqueue("t").payload(format!("{name} {nth}")).await;
            nth += 1;
        }
        nth
    })
}

#[tokio::test]
async fn under_load_no_job_is_lost_or_doubled_and_each_producers_order_is_kept() {
    let (shop, mail) = (empty("shop").await, empty("mail").await);
    let stores = [("shop", &shop), ("mail", &mail)];
    let (a, b) = (TestBroker::on_stores(&stores, |_| {}).await, TestBroker::on_stores(&stores, |_| {}).await);
    enqueue_at(&a, "shop", "t").await;
    // Enqueues 3,000 jobs before the move.
    shop.sql(
        "SELECT howdah.enqueue_many('t', (SELECT array_agg('sql ' || n ORDER BY n) FROM generate_series(0, 2999) n))",
    )
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let producers = [producer((*a).clone(), "a", stop.clone()), producer((*b).clone(), "b", stop.clone())];
    // With a window of one job, the worker receives jobs in the order in which brokers claim them.
    let mut worker = b.worker("t").window(1).await;
    let mover = (*a).clone();
    let moving = tokio::spawn(async move { moved(&mover, "mail").await });
    let mut seen: Vec<(String, i64)> = Vec::new();
    let mut total = None;
    let mut producing = Some(tokio::spawn(async move {
        let done = moving.await.expect("a move");
        stop.store(true, Ordering::Relaxed);
        let mut total = 0;
        for producer in producers {
            total += producer.await.expect("a producer");
        }
        (total, done)
    }));
    while total.is_none_or(|total| seen.len() < total) {
        let job = worker.next().await;
        seen.push((String::from_utf8_lossy(&job.payload).into_owned(), job.id));
        worker.ack(&job).await;
        if producing.as_ref().is_some_and(tokio::task::JoinHandle::is_finished)
            && let Some(producing) = producing.take()
        {
            let (enqueued, done) = producing.await.expect("producers");
            assert_eq!(done.staying_count, 0, "{done:?}");
            // Adds the 3,000 jobs enqueued by SQL, and the first job, to the jobs of the producers.
            total = Some(enqueued + 3_001);
        }
    }
    let mut next: HashMap<&str, usize> = HashMap::new();
    for (payload, id) in seen.iter().filter(|(payload, _)| !payload.is_empty()) {
        let (name, nth) = payload.split_once(' ').expect("a name");
        let expected = next.entry(name).or_default();
        assert_eq!(nth.parse::<usize>().ok(), Some(*expected), "{payload} (job {id}) was delivered out of order");
        *expected += 1;
    }
    assert!(seen.iter().any(|(_, id)| store_of(*id) == 1) && seen.iter().any(|(_, id)| store_of(*id) == 0));
    assert_eq!(next["sql"], 3_000);
    for database in [&shop, &mail] {
        assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 0);
    }
    let ended = shop.count("SELECT count(*) FROM howdah.history").await
        + mail.count("SELECT count(*) FROM howdah.history").await;
    assert_eq!(ended, seen.len() as i64);
}
