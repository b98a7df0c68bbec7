//! Tests hostile notifications, which every login of the database can send to the brokers' channel. Notifications are hints:
//! the broker ignores junk, and a flood does not slow it down for long.

use std::time::{Duration, Instant};

use howdah_cli::postgres::{Binaries, Cluster};
use howdah_proto::v1::{JobState, SettleStatus};

use super::{assert_serves, enqueue};
use crate::support::*;

#[tokio::test]
async fn forged_notifications_and_a_flood_of_notifications_are_ignored() {
    let database = database().await;
    let (a, b) = (TestBroker::on(&database).await, TestBroker::on(&database).await);
    let mut worker = Worker::connect(&b.grpc, "t", 2).await;
    enqueue(&a.grpc, vec![new_job("t", "held")]).await;
    let held = worker.next().await;
    let client = database.connect().await;
    let brokers: Vec<i32> =
        client.query("SELECT id FROM howdah.broker", &[]).await.expect("brokers").iter().map(|r| r.get(0)).collect();
    let mut junk: Vec<String> = [
        "",
        " ",
        "r",
        "r ",
        "r :",
        "r 1",
        "r 1:",
        "r 1:x",
        "r 1:2,",
        "r 1:2,,3:4",
        "r 99999999999:1",
        "r -1:-1",
        "r 1:9223372036854775808",
        "r 2147483647:9223372036854775807",
        "r 1:-9223372036854775808",
        "c",
        "c ",
        "c 1",
        "c 1 1",
        "c 1 1 ",
        "c x 1 1",
        "c 99999999999 0 1",
        "s",
        "s ",
        "s x",
        "S",
        "q 1:2",
        "drop",
        "'; --",
        "\u{1b}[2J",
        "\n\nr 1:1",
        "é🦀\u{202e}",
        "r 1:1 1:1",
        "c 1 1 1 1",
        "c 1 1 1:1",
        "{\"r\": 1}",
    ]
    .map(str::to_owned)
    .to_vec();
    for broker in brokers {
        // Adds forged notifications that a job was cancelled, although it is still leased.
        junk.push(format!("c {broker} 0 {}", held.id));
        junk.push(format!("c {broker} 1 {},1,0,-1,{}", held.id, i64::MAX));
    }
    junk.push("x".repeat(7_999));
    junk.push(format!("r {}", ["2147483647:1"; 600].join(",")));
    for payload in &junk {
        client.execute("SELECT pg_notify('howdah_wake', $1)", &[payload]).await.expect("notify");
    }
    // Sends 50,000 different notifications while jobs are enqueued and run.
    let flood = "SELECT count(pg_notify('howdah_wake', CASE n % 4 WHEN 0 THEN 'junk ' || n WHEN 1 THEN 'r 1:' || n
                     WHEN 2 THEN 's ' || n ELSE 'c 1 0 ' || n END)) FROM generate_series(1, 10000) n";
    let flooding = tokio::spawn(async move {
        for _ in 0..5 {
            client.batch_execute(flood).await.expect("flood");
            client.batch_execute("SELECT pg_notify('howdah_wake', 's')").await.expect("notify");
        }
    });
    for n in 0..100 {
        let id = enqueue(&a.grpc, vec![new_job("t", n.to_string())]).await[0].id;
        let job = worker.next().await;
        assert_eq!(job.id, id);
        worker.ack(&job).await;
    }
    with_timeout("the end of the flood", flooding).await.expect("no panic");
    assert_serves(&a.grpc).await;
    assert_eq!(worker.ack(&held).status().await, SettleStatus::Ok, "a forged notification ended the lease");
}

/// Number of sweeps that a broker has done, from its metrics.
async fn sweeps(broker: &TestBroker) -> u32 {
    let metrics = broker.metrics().await;
    let count = metrics.lines().find_map(|line| line.strip_prefix("howdah_sweeps_total "));
    count.and_then(|count| count.parse().ok()).expect(&metrics)
}

#[tokio::test]
async fn a_flood_that_asks_for_sweeps_causes_one_more_in_an_interval() {
    let interval = Duration::from_millis(500);
    let broker = TestBroker::start_with(|config| config.poll_interval = interval).await;
    let client = broker.database.connect().await;
    let (begun, before) = (Instant::now(), sweeps(&broker).await);
    while sweeps(&broker).await - before < 8 {
        let flood = "SELECT pg_notify('howdah_wake', 's') FROM generate_series(1, 10)";
        for _ in 0..20 {
            client.batch_execute(flood).await.expect("flood");
        }
    }
    // Besides the scheduled sweep, notifications cause at most one early sweep per interval. So eight sweeps take more than
    // three intervals.
    assert!(begun.elapsed() > interval * 3, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_full_queue_of_notifications_fails_no_call() {
    postgres_programs().await;
    let major = Binaries::find(None).expect("the Postgres of this run").major();
    if major < 17 {
        // Before Postgres 17, the size of the notification queue is fixed (8 GB), which is too large for the test.
        eprintln!("left out: Postgres {major} has no max_notify_queue_pages");
        return;
    }
    let mut config = cluster_config();
    config.settings.push(("max_notify_queue_pages".into(), "64".into()));
    let cluster = Cluster::start(config).await.expect("Postgres");
    cluster.create_database("app").await.expect("a database");
    let database = TestDatabase { url: cluster.url("app") };
    let broker = TestBroker::on(&database).await;
    let mut worker = broker.worker("t").window(3).await;
    let ids = broker.enqueue_all(["t"; 3]).await;
    let jobs = worker.take(3).await;
    // Postgres keeps notifications until every listener has read them. A listener in an open transaction does not read.
    let other = TestDatabase { url: cluster.url("postgres") }.connect().await;
    other.batch_execute("LISTEN x; BEGIN").await.expect("a listener");
    let flood = TestDatabase { url: cluster.url("postgres") }.connect().await;
    let full = loop {
        let notify = "SELECT pg_notify('y', repeat('x', 7000) || n) FROM generate_series(1, 3) n";
        if let Err(error) = flood.batch_execute(notify).await {
            break error;
        }
    };
    assert_eq!(full.code().expect("a code").code(), "54000");

    let (ended, ()) = tokio::join!(broker.wait(ids[0]), async { worker.ack(&jobs[0]).await });
    assert_eq!(ended.state(), JobState::Succeeded);
    worker.nack(&jobs[1], "no route").no_retry().await;
    assert_eq!(broker.cancel(&ids[2..]).await, ids[2..]);
    assert_eq!(worker.cancelled().await.id, ids[2]);
    broker.count("SELECT howdah.enqueue('t')").await;
    worker.next().await;
    other.batch_execute("ROLLBACK").await.expect("the end");
}
