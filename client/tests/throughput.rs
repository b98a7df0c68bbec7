//! How much the client itself can do, against a broker that answers at once. Run it with
//! `cargo test --release -p howdah-client --test throughput -- --ignored --nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a measurement prints, and fails by panicking"
)]

mod support;

use std::time::Instant;

use howdah_client::{
    Job, NewJob,
    proto::{DrainReason, LeasedJob, SettleStatus, work_request::Message as FromWorker},
};
use support::FakeBroker;

const JOBS: i64 = 1_000_000;
const WINDOW: i64 = 1000;

fn payload_job(id: i64) -> LeasedJob {
    LeasedJob { payload: vec![7; 64].into(), ..support::job(id) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a check"]
async fn a_worker_takes_and_settles_small_jobs() {
    let mut broker = FakeBroker::start().await;
    let worker = broker
        .client()
        .await
        .worker()
        .handle("t", |job: Job| async move { assert_eq!(job.payload.len(), 64) })
        .concurrency(WINDOW as usize)
        .max_jobs(JOBS as u64)
        .build();
    let handle = worker.start();
    let mut stream = broker.welcomed().await;
    let begun = Instant::now();
    let feeding = tokio::spawn(async move {
        let mut next = WINDOW;
        let mut messages = 0;
        let mut settled = 0;
        stream.push((0..WINDOW).map(payload_job).collect()).await;
        while settled < JOBS {
            match stream.next().await {
                FromWorker::Settle(settle) => {
                    messages += 1;
                    settled += settle.outcomes.len() as i64;
                    stream.answer(&settle.outcomes, SettleStatus::Ok, "").await;
                    let count = (settle.outcomes.len() as i64).min(JOBS - next);
                    if count > 0 {
                        stream.push((next..next + count).map(payload_job).collect()).await;
                        next += count;
                    }
                }
                FromWorker::Drain(_) => stream.drain(DrainReason::default(), None).await,
                other => panic!("{other:?}"),
            }
        }
        (stream, messages)
    });
    let (stream, messages) = feeding.await.unwrap();
    let rate = JOBS as f64 / begun.elapsed().as_secs_f64();
    println!("{rate:.0} jobs/s taken and settled, {} outcomes a message", JOBS / messages);
    drop(stream);
    assert_eq!(handle.joined().await.unwrap().acked, JOBS as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a check"]
async fn many_tasks_enqueue_one_job_a_call() {
    const TASKS: i64 = 256;
    let mut broker = FakeBroker::start().await;
    let producer = broker.client().await.producer();
    let begun = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let producer = producer.clone();
            tokio::spawn(async move {
                for _ in 0..JOBS / TASKS {
                    let job = NewJob::new("t").payload(vec![7; 64]);
                    producer.enqueue(job).await.unwrap();
                }
            })
        })
        .collect();
    let mut pipeline = broker.pipeline().await;
    let (mut stored, mut requests) = (0, 0);
    let total = JOBS / TASKS * TASKS;
    while stored < total {
        let request = pipeline.next().await;
        pipeline.store(&request, stored, true).await;
        stored += request.jobs.len() as i64;
        requests += 1;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let rate = total as f64 / begun.elapsed().as_secs_f64();
    println!("{rate:.0} jobs/s enqueued, {} jobs a request", total / requests);
}
