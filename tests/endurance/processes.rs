//! Brokers and workers are killed, stopped and continued.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

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
async fn a_broker_stopped_for_three_leases_and_continued_changes_nothing() {
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
async fn a_worker_stopped_until_its_leases_are_gone_settles_nothing_after() {
    let mut load = Load::start(Plan::new(Mix::All, 130)).await;
    load.produce();
    // Two at once, until the brokers have noticed (15 s) and the grace time is over.
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
