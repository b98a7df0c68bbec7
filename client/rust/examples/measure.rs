//! Measures a running broker: the pick-up latency of an idle broker, and the end-to-end rate of many jobs with many workers.
//! Counts every job; fails if a job is lost or delivered twice.
//!
//! `cargo run --release -p howdah-client --example measure -- http://127.0.0.1:7432 [more brokers]`

#![allow(clippy::print_stdout, reason = "the example prints for its user")]

use std::{
    collections::HashSet,
    env,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use howdah_client::{Client, Error, Job, JobError, NewJob};
use tokio::sync::{Notify, mpsc};

const LATENCY_JOBS: usize = 2_000;
const JOBS: usize = 100_000;
const WORKERS: usize = 100;
const PRODUCERS: usize = 4;
/// Jobs per request.
const BATCH: usize = 1_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut brokers: Vec<String> = env::args().skip(1).collect();
    if brokers.is_empty() {
        brokers.push(env::var("HOWDAH_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7432".into()));
    }
    latency(&brokers).await?;
    throughput(&brokers).await
}

/// Measures one job at a time, from sending the enqueue call to entering the handler.
async fn latency(brokers: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(&brokers[0]).await?;
    let (entered, mut entries) = mpsc::channel(1);
    let worker = client
        .worker()
        .handle("measure.latency", move |_: Job| {
            let (entered, now) = (entered.clone(), Instant::now());
            async move {
                let _ = entered.send(now).await;
                Ok::<_, JobError>(())
            }
        })
        .build()
        .start();
    worker.connected().await;
    let mut taken = Vec::with_capacity(LATENCY_JOBS);
    for _ in 0..LATENCY_JOBS {
        let sent = Instant::now();
        client.enqueue(NewJob::new("measure.latency").payload([0x5a; 64].to_vec())).await?;
        let at = entries.recv().await.ok_or("the worker ended")?;
        taken.push(at.saturating_duration_since(sent));
    }
    taken.sort_unstable();
    let at = |part: f64| taken[((taken.len() - 1) as f64 * part) as usize];
    println!("pick-up of {LATENCY_JOBS} single jobs: p50 {:?}, p99 {:?}, max {:?}", at(0.5), at(0.99), at(1.0));
    worker.stop().await?;
    Ok(())
}

/// Measures many jobs and many workers, distributed over the brokers.
async fn throughput(brokers: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let seen = Arc::new(
        (0..WORKERS).map(|_| std::sync::Mutex::new(Vec::with_capacity(4 * JOBS / WORKERS))).collect::<Vec<_>>(),
    );
    let (done, all_done) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let mut workers = Vec::new();
    for n in 0..WORKERS {
        let (seen, done, all_done) = (seen.clone(), done.clone(), all_done.clone());
        let handler = move |job: Job| {
            if let Ok(mut seen) = seen[n].lock() {
                seen.push(job.id);
            }
            if done.fetch_add(1, Ordering::Relaxed) + 1 == JOBS {
                all_done.notify_one();
            }
            async { Ok::<_, JobError>(()) }
        };
        let client = Client::connect(&brokers[n % brokers.len()]).await?;
        let worker = client.worker().handle("measure.rate", handler).concurrency(100).build().start();
        worker.connected().await;
        workers.push(worker);
    }
    let begun = Instant::now();
    let mut producers = tokio::task::JoinSet::new();
    for n in 0..PRODUCERS {
        let client = Client::connect(&brokers[n % brokers.len()]).await?;
        producers.spawn(async move {
            let mut ids = Vec::with_capacity(JOBS / PRODUCERS);
            for _ in 0..JOBS / PRODUCERS / BATCH {
                let jobs = (0..BATCH).map(|_| NewJob::new("measure.rate").payload([0x5a; 64].to_vec())).collect();
                ids.extend(enqueue(&client, jobs).await?);
            }
            Ok::<_, Error>(ids)
        });
    }
    let mut enqueued = HashSet::new();
    while let Some(ids) = producers.join_next().await {
        enqueued.extend(ids??);
    }
    println!("{JOBS} jobs enqueued in {:.2?}", begun.elapsed());
    tokio::time::timeout(Duration::from_secs(120), all_done.notified()).await?;
    for worker in &workers {
        worker.stop().await?;
    }
    let took = begun.elapsed();
    let delivered: Vec<i64> = seen.iter().flat_map(|s| s.lock().map(|s| s.clone()).unwrap_or_default()).collect();
    let distinct: HashSet<i64> = delivered.iter().copied().collect();
    println!(
        "{JOBS} jobs, {WORKERS} workers, {} broker(s), enqueued, worked and acked: {took:.2?}, {:.0} jobs/s",
        brokers.len(),
        JOBS as f64 / took.as_secs_f64()
    );
    if delivered.len() != distinct.len() || distinct != enqueued {
        return Err(format!(
            "{} deliveries of {} distinct jobs, {} enqueued",
            delivered.len(),
            distinct.len(),
            enqueued.len()
        )
        .into());
    }
    Ok(())
}

/// Enqueues with the generated client and without a request key, so the call must not be repeated: it would store the jobs
/// again.
async fn enqueue(client: &Client, jobs: Vec<NewJob>) -> Result<Vec<i64>, Error> {
    let jobs = jobs.into_iter().map(Into::into).collect();
    let request = howdah_client::proto::EnqueueJobsRequest { jobs, request_key: String::new() };
    let answer = client.jobs().enqueue_jobs(request).await?;
    Ok(answer.into_inner().jobs.iter().map(|j| j.id).collect())
}
