//! Tests brokers and workers that are killed, stopped (SIGSTOP) and continued.

use std::time::Duration;

use howdah_cli::postgres::StopMode;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{
    brokers::send_signal,
    load::{Load, Plan},
    mix::Mix,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_broker_killed_a_hundred_times_loses_nothing() {
    let mut load = Load::start(Plan::new(Mix::All, 120)).await;
    load.produce();
    for _ in 0..100 {
        let n = rand::random_range(0..3);
        load.brokers[n].kill().await;
        load.brokers[n].restart();
        load.brokers[n].ready().await;
        load.pause(Duration::from_millis(500)).await;
    }
    load.check("kill -9 a broker", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_worker_killed_a_hundred_times_loses_nothing() {
    let mut load = Load::start(Plan::new(Mix::All, 120)).await;
    load.produce();
    for _ in 0..100 {
        let n = rand::random_range(0..4);
        let worker = load.workers[n].take().expect("a worker");
        send_signal(&worker, Signal::KILL);
        load.workers[n] = Some(load.worker(n));
        drop(worker);
        load.pause(Duration::from_millis(1_000)).await;
    }
    load.check("kill -9 a worker", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_broker_stopped_for_three_times_its_lease_and_continued_loses_nothing() {
    let mut load = Load::start(Plan::new(Mix::All, 120)).await;
    load.produce();
    for turn in 0..10 {
        load.brokers[turn % 3].signal(Signal::STOP);
        sleep(Duration::from_secs(6)).await;
        load.brokers[turn % 3].signal(Signal::CONT);
        load.pause(Duration::from_secs(3)).await;
    }
    load.check("SIGSTOP a broker for three leases", 10).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn brokers_whose_rows_expire_all_the_time_lose_nothing() {
    let mut plan = Plan::new(Mix::All, 120);
    plan.settings =
        vec!["--set", "broker_lease=400ms", "--set", "renew_interval=100ms", "--set", "session_grace=200ms"];
    plan.replayed = true;
    let mut load = Load::start(plan).await;
    load.produce();
    for _ in 0..100 {
        let n = rand::random_range(0..3);
        load.brokers[n].signal(Signal::STOP);
        sleep(Duration::from_millis(rand::random_range(300..1_500))).await;
        load.brokers[n].signal(Signal::CONT);
        load.pause(Duration::from_millis(200)).await;
    }
    load.check("SIGSTOP a broker whose lease lasts 400 ms", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_worker_stopped_until_its_leases_are_gone_settles_nothing_after() {
    let mut load = Load::start(Plan::new(Mix::All, 130)).await;
    load.produce();
    // Stops two workers for longer than 10 s, after which brokers count them as lost.
    for turn in 0..5 {
        let stopped = [turn % 4, (turn + 1) % 4];
        let signal = |signal| {
            let workers = stopped.iter().filter_map(|n| load.workers[*n].as_ref());
            workers.for_each(|worker| send_signal(worker, signal));
        };
        signal(Signal::STOP);
        sleep(Duration::from_secs(20)).await;
        signal(Signal::CONT);
        load.pause(Duration::from_secs(4)).await;
    }
    load.check("SIGSTOP a worker for 20 s", 10).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn all_kinds_of_faults_at_once_lose_nothing() {
    let mut plan = Plan::new(Mix::All, 150);
    plan.replayed = true;
    let mut load = Load::start(plan).await;
    load.produce();
    let until = Instant::now() + Duration::from_secs(120);
    let mut faults = 0;
    while Instant::now() < until {
        let (n, wait) = (rand::random_range(0..3), rand::random_range(0..3) > 0);
        match rand::random_range(0..20) {
            0..=6 => {
                load.brokers[n].kill().await;
                load.brokers[n].restart();
            }
            7..=11 => {
                let worker = load.workers[n].take().expect("a worker");
                send_signal(&worker, Signal::KILL);
                load.workers[n] = Some(load.worker(n));
            }
            12 | 13 => {
                load.brokers[n].signal(Signal::STOP);
                sleep(Duration::from_millis(rand::random_range(1_000..5_000))).await;
                load.brokers[n].signal(Signal::CONT);
            }
            14 | 15 => {
                load.brokers[n].revive().await;
                let status = load.brokers[n].stop(Duration::from_secs(60)).await.expect("an end by the deadline");
                assert!(status.success(), "{status:?}");
                load.brokers[n].restart();
            }
            16..=18 => {
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
                           WHERE datname = 'app' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 10) a";
                drop(load.database.connect().await.query_one(sql, &[]).await);
            }
            _ => {
                load.cluster().stop(StopMode::Immediate).await;
                load.pause(Duration::from_secs(1)).await;
                load.cluster().restart().await.expect("restart");
            }
        }
        faults += 1;
        // In some rounds the next fault comes only after the broker is ready again; in others it may hit a broker that is still
        // starting.
        if wait {
            load.brokers[n].revive().await;
        }
        load.pause(Duration::from_millis(400)).await;
    }
    for broker in &mut load.brokers {
        broker.revive().await;
    }
    load.check("all kinds of faults at once", faults).await;
}
