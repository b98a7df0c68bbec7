//! Tests at-least-once delivery of jobs to workers.

use std::{collections::HashSet, sync::Arc};

use howdah_proto::v1::{JobState, SettleStatus, work_response::Message};
use tokio::{
    sync::{Mutex, watch},
    task::JoinSet,
};

use crate::support::*;

#[tokio::test]
async fn a_job_is_pushed_to_a_worker_of_its_type_and_acked() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("email.send").await;
    let id = broker.enqueue(new_job("email.send", "hello")).await;
    let job = worker.next().await;
    assert_eq!((job.id, &job.payload[..], job.attempt), (id, &b"hello"[..], 1));
    worker.ack(&job).await;
    assert_eq!(broker.state(id).await, JobState::Succeeded);
    drop(worker);
    broker.stop().await;
}

#[tokio::test]
async fn a_job_enqueued_before_any_worker_came_waits_for_one() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("later").await;
    let mut worker = broker.worker("later").window(1).await;
    assert_eq!(worker.next().await.id, id);
}

#[tokio::test]
async fn jobs_enqueued_at_one_broker_reach_a_worker_of_another() {
    let (a, b) = TestBroker::pair().await;
    let mut worker = b.worker("x").await;
    let ids = a.enqueue_all(["x", "x"]).await;
    let got = [worker.next().await.id, worker.next().await.id];
    assert_eq!(got[..], ids[..]);
}

#[tokio::test]
async fn a_lower_priority_number_goes_first_and_equals_in_order() {
    let broker = TestBroker::start().await;
    let with = |priority: i32| new_job("p", "").priority(priority);
    let ids = broker.enqueue_all([with(5), with(0), with(-1000), with(1000), with(0)]).await;
    let mut worker = broker.worker("p").await;
    let mut got = Vec::new();
    for _ in 0..5 {
        got.push(worker.next().await.id);
    }
    assert_eq!(got, [ids[2], ids[1], ids[4], ids[0], ids[3]]);
}

#[tokio::test]
async fn a_delayed_job_comes_when_it_is_due_and_not_before() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("d").await;
    let delayed = |delay| new_job("d", "").delay(delay);
    let ids = broker.enqueue_all([delayed(HOUR), delayed(millis(300)), delayed(millis(0))]).await;
    assert_eq!(worker.next().await.id, ids[2]);
    let late = worker.next().await;
    assert_eq!(late.id, ids[1]);
    let job = broker.job(late.id).await;
    let micros =
        |time: Option<prost_types::Timestamp>| time.map(|t| t.seconds * 1_000_000 + i64::from(t.nanos) / 1_000);
    assert!(micros(job.start_time) >= micros(job.create_time).map(|t| t + 300_000), "it was delivered early: {job:?}");
    assert_eq!(broker.state(ids[0]).await, JobState::Scheduled);
}

#[tokio::test]
async fn tens_of_thousands_of_jobs_reach_a_hundred_workers_on_two_brokers_once_each() {
    let jobs = sized(20_000, 100_000);
    let (a, b) = TestBroker::pair().await;
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let (acked, mut done) = watch::channel(0_usize);
    let mut workers = JoinSet::new();
    for n in 0..100 {
        let worker = if n % 2 == 0 { &a } else { &b }.worker("many").window(100).await;
        workers.spawn(ack_everything(worker, seen.clone(), acked.clone()));
    }
    let mut producers = JoinSet::new();
    for n in 0..4 {
        let broker = if n % 2 == 0 { &a } else { &b };
        let requests = jobs / 4 / 500;
        let service = Service::clone(broker);
        producers.spawn(async move {
            for _ in 0..requests {
                service.enqueue_all((0..500).map(|_| new_job("many", "payload"))).await;
            }
        });
    }
    while producers.join_next().await.transpose().expect("producer").is_some() {}
    // Waits for one ack at a time, so that the timeout limits the time between two acks and not the whole test.
    while *done.borrow_and_update() < jobs {
        with_timeout("the next ack", done.changed()).await.expect("workers");
    }
    assert_eq!(seen.lock().await.len(), jobs);
    let acked =
        a.count("SELECT count(DISTINCT id) FROM howdah.history WHERE outcome = 'succeeded' AND attempt = 1").await;
    assert_eq!(acked, jobs as i64);
    assert_eq!(a.count("SELECT count(*) FROM howdah.job").await, jobs as i64);
    workers.shutdown().await;
}

/// Acks every job, and asserts that none is delivered twice.
async fn ack_everything(mut worker: Worker, seen: Arc<Mutex<HashSet<i64>>>, acked: watch::Sender<usize>) {
    loop {
        match worker.message().await.expect("an open stream") {
            Some(Message::Jobs(jobs)) => {
                worker.settle(jobs.jobs.iter().map(ack).collect()).await;
                let mut seen = seen.lock().await;
                for job in jobs.jobs {
                    assert!(seen.insert(job.id), "job {} was delivered twice", job.id);
                }
            }
            Some(Message::Settled(settled)) => {
                assert!(settled.results.iter().all(|r| r.status() == SettleStatus::Ok));
                acked.send_modify(|n| *n += settled.results.len());
            }
            _ => return,
        }
    }
}
