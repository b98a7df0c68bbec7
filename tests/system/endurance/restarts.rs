//! Tests rolling restarts as in an upgrade, jobs that kill their worker, killed producers, and a thousand concurrent
//! streams.

use std::{
    os::unix::process::ExitStatusExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_proto::v1::{
    NewJob, Subscribe, WorkRequest, WorkResponse, work_request, worker_service_client::WorkerServiceClient,
};
use rustix::process::Signal;
use tokio::{
    process::Child,
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use super::{
    brokers::send_signal,
    load::{Load, PRODUCERS, Plan},
    mix::Mix,
    producer,
    record::Record,
};
use crate::support::PATIENCE;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn fifty_rolling_restarts_use_up_no_attempt_and_end_well_in_time() {
    let mut plan = Plan::new(Mix::All, 120);
    plan.settings = vec![];
    plan.plain = true;
    let mut load = Load::start(plan).await;
    load.produce();
    let mut longest = Duration::ZERO;
    for turn in 0..50 {
        let broker = &mut load.brokers[turn % 3];
        let began = Instant::now();
        // Stops the broker, which drains within its drain deadline of 30 s.
        let status = broker.stop(Duration::from_secs(35)).await.expect("an end by the deadline");
        assert!(status.success(), "{status:?}");
        longest = longest.max(began.elapsed());
        broker.restart();
        broker.ready().await;
        load.pause(Duration::from_millis(600)).await;
    }
    eprintln!("longest drain: {longest:?}");
    // The workers leave when they get a `Drain`. A worker without a `Drain` would keep the broker running until the broker
    // closes all streams after 27 s.
    assert!(longest < Duration::from_secs(25), "a worker did not get a Drain: {longest:?}");
    let found = load.check("rolling restart", 50).await;
    assert_eq!(found.tried_again(), 0, "restarts used up attempts");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_job_that_kills_every_worker_it_meets_is_dead_at_its_limit_and_the_others_flow() {
    let mut plan = Plan::new(Mix::All, 60);
    plan.poison = "poison";
    let mut load = Load::start(plan).await;
    load.produce();
    let record = Record::open(&load.records.path(), "poisoner");
    let mut clients = producer::clients(&load.addresses());
    for n in 0..5 {
        let poison =
            NewJob { task_type: "plain".into(), payload: "poison".into(), max_attempts: 5, ..NewJob::default() };
        producer::enqueue(
            &mut clients,
            n,
            &format!("poison-{n}"),
            vec![poison],
            &record,
            PATIENCE,
            &load.production.refused,
        )
        .await;
    }
    // A poison job is dead after it has killed five workers. A worker that holds two poison jobs uses up an attempt of both.
    let mut killed = 0;
    while load.database.count("SELECT count(*) FROM howdah.dead").await < 5 {
        assert!(killed < 25, "{killed} workers were killed");
        let before = load.accepted();
        let ended = timeout(Duration::from_secs(5), first_end(&mut load.workers)).await;
        let Ok((n, status)) = ended else { continue };
        assert_eq!(status.signal(), Some(6), "a worker ended without a poison job");
        killed += 1;
        load.workers[n] = Some(load.worker(n));
        load.accept(before + 1).await;
    }
    let found = load.check("a job that kills its worker", killed).await;
    assert_eq!(found.dead(), 5);
}

/// Waits for the first worker that exits. Returns its index and exit status.
async fn first_end(workers: &mut [Option<Child>]) -> (usize, std::process::ExitStatus) {
    loop {
        for (n, worker) in workers.iter_mut().enumerate() {
            if let Some(status) = worker.as_mut().expect("a worker").try_wait().expect("wait") {
                return (n, status);
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn producers_killed_in_the_middle_of_calls_and_repeated_with_their_keys_store_each_job_once() {
    let load = Load::start(Plan::new(Mix::Plain, 90)).await;
    let mut producers: Vec<Child> = (0..PRODUCERS).map(|n| load.producer(n)).collect();
    for turn in 0..100 {
        sleep(Duration::from_millis(rand::random_range(100..1_200))).await;
        let producer = &mut producers[turn % PRODUCERS];
        send_signal(producer, Signal::KILL);
        producer.wait().await.expect("wait");
        *producer = load.producer(turn % PRODUCERS);
    }
    // Producers exit when their standard input is closed and all their requests are answered.
    for mut producer in producers {
        drop(producer.stdin.take());
        let status = timeout(2 * PATIENCE, producer.wait()).await.expect("an end").expect("wait");
        assert!(status.success(), "{status:?}");
    }
    load.check("kill -9 a producer", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_thousand_streams_that_come_back_at_once_do_not_crowd_postgres() {
    const STREAMS: usize = 1_000;
    let mut plan = Plan::new(Mix::Plain, 60);
    plan.brokers = 2;
    let mut load = Load::start(plan).await;
    load.produce();
    let (open, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let addresses = load.addresses();
    let streams: Vec<_> =
        (0..STREAMS).map(|n| tokio::spawn(come_back(n, addresses.clone(), open.clone(), stop.clone()))).collect();
    let client = load.database.connect().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'app' AND application_name LIKE 'howdah%'";
    let mut most = 0;
    for turn in 0..5 {
        let deadline = Instant::now() + 2 * PATIENCE;
        while open.load(Ordering::Relaxed) < STREAMS {
            assert!(Instant::now() < deadline, "{} streams came back", open.load(Ordering::Relaxed));
            most = most.max(client.query_one(sql, &[]).await.expect(sql).get::<_, i64>(0));
            sleep(Duration::from_millis(20)).await;
        }
        let broker = &mut load.brokers[turn % 2];
        broker.kill().await;
        broker.restart();
        broker.ready().await;
    }
    stop.store(true, Ordering::Relaxed);
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    eprintln!("connections to Postgres, at most: {most}");
    // A broker has at most eight connections for jobs, four for operators and one for notifications. Connections of a killed
    // broker may still be open, so one more broker is counted.
    assert!(most <= 3 * (8 + 4 + 1), "{most} connections to Postgres");
    load.check("1,000 streams that come back at once", 5).await;
}

/// Runs an idle worker that reopens its stream whenever it breaks.
async fn come_back(n: usize, brokers: Vec<String>, open: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
    for turn in n.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", brokers[turn % brokers.len()]));
        if let Ok(channel) = endpoint.expect("address").connect().await
            && let Ok((_send, mut stream)) = idle(channel).await
        {
            open.fetch_add(1, Ordering::Relaxed);
            while let Ok(Some(_)) = stream.message().await {}
            open.fetch_sub(1, Ordering::Relaxed);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Opens a worker stream and waits for its `Welcome`.
async fn idle(channel: Channel) -> Result<(mpsc::Sender<WorkRequest>, Streaming<WorkResponse>), Status> {
    let (send, receive) = mpsc::channel(1);
    let subscribe = Subscribe { task_type: "nothing".into(), window: 1, ..Subscribe::default() };
    let first = WorkRequest { message: Some(work_request::Message::Subscribe(subscribe)) };
    drop(send.send(first).await);
    let mut stream = WorkerServiceClient::new(channel).work(ReceiverStream::new(receive)).await?.into_inner();
    stream.message().await?;
    Ok((send, stream))
}
