//! Tests two stores on separate Postgres servers. One server crashes, restarts and is replaced by its replica, and a task type
//! moves between the stores. No job is lost, and the other store is not affected.

use std::{sync::atomic::AtomicUsize, time::Duration};

use futures::future::join_all;
use howdah_cli::postgres::{Cluster, StopMode};
use tokio::time::{Instant, sleep};

use super::{
    check::Findings,
    load::{Load, Plan, durable},
    mix::Mix,
    producer,
    record::{Record, now},
};
use crate::support::{PATIENCE, Replicated, TestDatabase, run};

/// Downtime of the store that fails.
const AWAY: Duration = Duration::from_secs(8);

/// Number of moves of the task type between the stores. Before each move, `BEFORE_A_MOVE` jobs are enqueued.
const MOVES: usize = 6;
const BEFORE_A_MOVE: usize = 2_000;

/// Start and end of a period, in microseconds since 1970.
type Span = (u64, u64);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_store_that_is_stopped_and_then_promoted_loses_nothing_and_the_other_goes_on() {
    let mut second = Replicated::synchronous(&durable()).await;
    let mut load = started((second.at_primary(), second.url())).await;
    let before = quiet().await;
    let mut away = Vec::new();
    for round in 0..3 {
        let began = now();
        second.primary.stop(StopMode::Immediate).await;
        sleep(AWAY).await;
        second.primary.restart().await.expect("restart");
        away.push((began, now()));
        serves_again(&load, "second", Mix::Second, round).await;
    }
    let began = now();
    second.primary.stop(StopMode::Immediate).await;
    sleep(AWAY).await;
    load.second = Some(second.at_replica());
    second.promote().await;
    away.push((began, now()));
    serves_again(&load, "second", Mix::Second, 3).await;
    let findings = load.check("a store stopped hard for 8 s three times, then promoted", 4).await;
    compare(&findings, "plain", before, &away);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn the_first_store_that_is_stopped_hard_loses_nothing_and_the_other_goes_on() {
    let (_cluster, second) = second_server().await;
    let mut load = started((second.clone(), second.url.clone())).await;
    let before = quiet().await;
    let mut away = Vec::new();
    for round in 0..3 {
        let began = now();
        load.cluster().stop(StopMode::Immediate).await;
        sleep(AWAY).await;
        load.cluster().restart().await.expect("restart");
        away.push((began, now()));
        serves_again(&load, "first", Mix::Plain, round).await;
    }
    let findings = load.check("the first store stopped hard for 8 s", 3).await;
    compare(&findings, "second", before, &away);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_type_that_moves_between_the_stores_loses_nothing_and_the_other_goes_on() {
    let (_cluster, second) = second_server().await;
    let load = started((second.clone(), second.url.clone())).await;
    let before = quiet().await;
    let mut moving = Vec::new();
    for round in 0..MOVES {
        let to = ["second", "first"][round % 2];
        backlog(&load, round).await;
        let began = now();
        let server = format!("http://{}", load.brokers[round % load.brokers.len()].grpc);
        let (status, _, err) = run(&["type", "move", "plain", "--to", to, "--server", &server], b"").await;
        assert!(status.success(), "{err}");
        moving.push((began, now()));
        let took = Duration::from_micros(now() - began);
        eprintln!("{} in {took:.1?}", err.lines().last().unwrap_or_default());
        // Wait until jobs of the producers are accepted after the move.
        load.progress(400).await;
    }
    let findings = load.check("a type moved to the other store", MOVES).await;
    compare(&findings, "second", before, &moving);
    let rest = findings.waits("plain").into_iter().map(|(_, wait)| wait).max().unwrap_or_default();
    eprintln!("the longest time from request to worker of a job of the type that moved: {:.1} s", rest as f64 / 1e6);
}

/// Enqueues more jobs of the moved task type than the workers can run at once.
async fn backlog(load: &Load, round: usize) {
    let record = Record::open(&load.records.path(), "backlog");
    let mut clients = producer::clients(&load.addresses());
    let request = format!("backlog-{round}");
    let jobs = Mix::Plain.jobs(0, &request, BEFORE_A_MOVE);
    producer::enqueue(&mut clients, round, &request, jobs, &record, PATIENCE, &AtomicUsize::new(0)).await;
}

/// Starts a separate Postgres for the second store.
async fn second_server() -> (Cluster, TestDatabase) {
    let cluster = Cluster::start(durable()).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let second = TestDatabase { url: cluster.url("app") };
    (cluster, second)
}

/// Starts brokers on a new Postgres and on the second store, under load.
async fn started(second: (TestDatabase, String)) -> Load {
    let cluster = Cluster::start(durable()).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let mut plan = Plan::new(Mix::Stores, 90);
    plan.patience = Duration::from_secs(40);
    let mut load = Load::start_two(plan, cluster, second).await;
    load.produce();
    load
}

/// Waits until all connections are open, then returns start and end of 15 s without faults.
async fn quiet() -> Span {
    sleep(Duration::from_secs(3)).await;
    let began = now();
    sleep(Duration::from_secs(15)).await;
    (began, now())
}

/// Waits until each broker has stored a job in the store again, and prints how long this took.
async fn serves_again(load: &Load, store: &str, mix: Mix, round: usize) {
    let ready = Instant::now();
    let again = load.brokers.iter().enumerate().map(|(n, broker)| {
        let record = Record::open(&load.records.path(), &format!("again-{n}"));
        let mut clients = producer::clients(std::slice::from_ref(&broker.grpc));
        let request = format!("again-{round}-{n}");
        async move {
            let jobs = mix.jobs(0, &request, 1);
            producer::enqueue(&mut clients, 0, &request, jobs, &record, PATIENCE, &AtomicUsize::new(0)).await;
        }
    });
    join_all(again).await;
    eprintln!("from a {store} store that is ready until each broker has stored a job there: {:?}", ready.elapsed());
}

/// Prints the 99th percentile of the time from request to delivery for jobs of the other store, before and during the fault.
/// The load of the machine is unknown, so the ratio is not asserted.
fn compare(findings: &Findings, task_type: &str, before: Span, away: &[Span]) {
    let waits = findings.waits(task_type);
    let during = |(from, until): &Span| {
        let within = waits.iter().filter(move |(at, _)| (from..until).contains(&at));
        within.map(|(_, wait)| *wait).collect::<Vec<u64>>()
    };
    let calm = p99_ms(during(&before));
    let stopped = p99_ms(away.iter().flat_map(during).collect());
    eprintln!(
        "jobs of the other store, from request to worker, p99: {calm:.1} ms before, {stopped:.1} ms meanwhile, {:.2} times as much \
         (goal: at most 1.5)",
        stopped / calm
    );
    // If jobs of the other store had to wait for the failed store, they would wait until the end of the downtime.
    let longest = AWAY.as_millis() as f64 / 2.0;
    assert!(stopped < longest, "the other store waited: p99 {stopped:.0} ms");
}

fn p99_ms(mut waits: Vec<u64>) -> f64 {
    assert!(!waits.is_empty(), "no job was delivered in this time");
    waits.sort_unstable();
    waits[(waits.len() - 1) * 99 / 100] as f64 / 1e3
}
