//! Tests external monitoring of brokers: the metrics of alerts, the rules in `deploy/prometheus`, the dashboard in
//! `deploy/grafana`.

mod expression; // metrics and labels that an expression names
mod rules; // every rule and panel, against a real broker

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_core::config::Config;
use howdah_engine::store::{MaintenanceState, Store};

use crate::support::*;

/// Reads the maintenance figures from the database, as a broker does for its metrics. The figure `days_ahead` covers the next 3
/// days.
async fn maintenance_state(database: &TestDatabase) -> MaintenanceState {
    Store::new(&Config::new(&database.url)).expect("store").maintenance_state(3).await.expect("the figures")
}

fn bytes(state: &MaintenanceState, table: &str) -> i64 {
    state.tables.iter().find(|(name, _)| name == table).map_or(-1, |(_, bytes)| *bytes)
}

#[tokio::test]
async fn workers_of_a_type_are_counted_at_their_broker_until_they_leave() {
    let (a, b) = TestBroker::pair().await;
    let worker = a.worker("mail").await;
    let another = a.worker("mail").await;
    let there = b.worker("mail").await;
    let counts = async |broker: &TestBroker, workers: u32| {
        let line = format!("howdah_workers{{task_type=\"mail\"}} {workers}\n");
        eventually(&line, async || broker.metrics().await.contains(&line)).await;
    };
    tokio::join!(counts(&a, 2), counts(&b, 1));
    drop((another, there));
    tokio::join!(counts(&a, 1), counts(&b, 0));
    drop(worker);
}

#[tokio::test]
async fn when_jobs_of_a_type_were_last_pulled_is_in_the_metrics_of_every_broker() {
    let (a, b) = TestBroker::pair().await;
    a.pull("pulled").await;
    b.sql("INSERT INTO howdah.task_type (name) VALUES ('never')").await;
    let series = |task_type: &str| format!("howdah_last_pull_timestamp_seconds{{task_type=\"{task_type}\"}} ");
    eventually("the time of the last pull in the metrics", async || {
        let (a, b) = tokio::join!(a.metrics(), b.metrics());
        a.contains(&series("pulled")) && b.contains(&series("pulled")) && b.contains("task_type=\"never\"")
    })
    .await;
    let metrics = b.metrics().await;
    let (_, last) = metrics.split_once(&series("pulled")).expect("a time");
    let last: u64 = last.lines().next().expect("a line").parse().expect("seconds");
    let now = std::time::UNIX_EPOCH.elapsed().expect("a time").as_secs();
    // The metric is the time of the last pull, which on a slow machine may be minutes ago.
    assert!((now - 2 * PATIENCE.as_secs()..=now).contains(&last), "{last} of {now}");
    assert!(!metrics.contains(&series("never")));
}

#[tokio::test]
async fn a_schedule_whose_planned_time_passed_is_late_and_one_that_could_not_fire_is_failing() {
    let broker = TestBroker::start().await;
    let client = broker.client().await;
    for name in ["late", "failing", "in-time", "paused"] {
        let schedule = NewSchedule::new(name, NewJob::new("t"), Plan::every(HOUR)).start(far());
        client.create_schedule(schedule).await.expect("create");
    }
    let database = broker.database.clone();
    broker.stop().await;
    let figures = maintenance_state(&database).await;
    assert_eq!((figures.schedule_delay, figures.schedules_failing), (secs(0), 0));
    database
        .sql(
            "UPDATE howdah.schedule SET next_planned = now() - interval '10 min', next_at = now() - interval '8 min',
                    jitter_ms = 120000 WHERE name = 'late';
             UPDATE howdah.schedule SET last_error = 'refused' WHERE name = 'failing';
             UPDATE howdah.schedule SET next_planned = now() - interval '1 day', next_at = NULL, paused = true,
                    last_error = 'refused' WHERE name = 'paused'",
        )
        .await;
    let figures = maintenance_state(&database).await;
    assert_eq!(figures.schedules_failing, 1);
    assert!((secs(480)..secs(480) + PATIENCE).contains(&figures.schedule_delay), "{figures:?}");
}

#[tokio::test]
async fn a_day_that_misses_a_partition_is_not_counted_as_ahead() {
    let database = database().await;
    Store::new(&Config::new(&database.url)).expect("store").make_partitions(3).await.expect("partitions");
    assert_eq!(maintenance_state(&database).await.days_ahead, 3);
    let day = "to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')";
    let drop = format!("DO $$ BEGIN EXECUTE 'DROP TABLE howdah.payload_' || {day}; END $$");
    database.sql(&drop).await;
    assert_eq!(maintenance_state(&database).await.days_ahead, 2);
}

#[tokio::test]
async fn the_size_of_a_table_has_its_partitions_and_needs_no_lock() {
    let database = database().await;
    let before = maintenance_state(&database).await;
    for table in ["ready", "leased", "scheduled", "waiting", "dead", "history", "payload", "audit", "task_type"] {
        assert!(bytes(&before, table) >= 0, "{table}: {before:?}");
    }
    assert_eq!(bytes(&before, "history_default"), -1, "a partition is part of its table");
    database
        .sql(
            "INSERT INTO howdah.payload (id, created, data) SELECT n, now(), decode(repeat('ab', 4000), 'hex')
             FROM generate_series(1, 500) n; ANALYZE howdah.payload",
        )
        .await;
    let session = database.connect().await;
    session.batch_execute("BEGIN; LOCK TABLE howdah.ready, howdah.history").await.expect("lock");
    let after = maintenance_state(&database).await;
    assert!(bytes(&after, "payload") > bytes(&before, "payload"), "{before:?} {after:?}");
}

#[tokio::test]
async fn a_broker_shows_its_figures_as_metrics() {
    let broker = TestBroker::start().await;
    let wanted = [
        "howdah_schedule_delay_seconds 0.0\n",
        "howdah_schedules_failing 0\n",
        "howdah_partition_days_ahead 3\n",
        "howdah_table_bytes{table=\"other\"} ",
    ];
    eventually("the figures", async || {
        let metrics = broker.metrics().await;
        wanted.iter().all(|line| metrics.contains(line))
    })
    .await;
}
