//! Tests changes of the database's clock: the clock was wrong, or a server with another clock is promoted.

use std::time::Duration;

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_proto::v1::{JobState, PauseLimitKeyRequest, Rate, SettleStatus, TaskTypeSettings};

use crate::support::*;

/// Waits until the metrics show that a broker trusts the database's clock, or does not.
async fn until_relied_on(broker: &Service, relied_on: bool) {
    let line = format!("howdah_database_clock_doubtful {}\n", i32::from(!relied_on));
    eventually(&line, async || broker.metrics().await.contains(&line)).await;
}

/// Creates data that brokers must not delete: a finished job, a request key, a held key, and statistics.
async fn fill(broker: &Service) {
    let mut worker = broker.worker("t").await;
    broker.enqueue(new_job("t", "x").key("k").key_hold(HOUR)).request_key("r").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    broker.until("summed statistics", "SELECT count(*) > 0 FROM howdah.statistics WHERE succeeded > 0").await;
}

const KEPT: &str =
    "SELECT (SELECT count(*) FROM howdah.history) + (SELECT count(*) FROM howdah.request WHERE key = 'r')
                         + (SELECT count(*) FROM howdah.job_key WHERE key = 'k')
                         + (SELECT count(DISTINCT minutes) FROM howdah.statistics WHERE succeeded > 0)
                         + (SELECT count(*) FROM howdah.task_type WHERE name = 'unused')";

#[tokio::test]
async fn a_clock_that_is_ahead_for_a_while_deletes_nothing_and_leaves_nothing_planned_for_then() {
    let database = database_with_clock().await;
    let before = TestBroker::on(&database).await;
    fill(&before).await;
    let id = before.enqueue("unused").await;
    before.cancel(&[id]).await;
    let client = before.client().await;
    for (name, plan) in [
        ("daily", Plan::cron("30 2 * * *", "Europe/Berlin")),
        ("often", Plan::cron("* * * * *", "UTC")),
        ("period", Plan::every(HOUR)),
    ] {
        client.create_schedule(NewSchedule::new(name, NewJob::new("planned"), plan)).await.expect("create");
    }
    assert_eq!(before.count(KEPT).await, 8);
    before.until("the first job of the period", "SELECT fired = 1 FROM howdah.schedule WHERE name = 'period'").await;
    before.stop().await;

    database.set_clock("40 days").await;
    let broker = TestBroker::on_with(&database, |config| config.clock_settling = secs(2)).await;
    until_relied_on(&broker, false).await;
    // With the clock 40 days ahead, the broker fires schedules that are due by this clock, and creates day partitions for its
    // dates.
    let all = "SELECT bool_and(fired > CASE name WHEN 'period' THEN 1 ELSE 0 END) FROM howdah.schedule";
    broker.until("three schedules that fired", all).await;
    let made = "SELECT count(*) > 0 FROM pg_class WHERE relname = to_char((now() AT TIME ZONE 'UTC')::date, '\"history_\"YYYYMMDD')";
    broker.until("a partition of the wrong day", made).await;
    // Statistics and key holds that the broker writes with the wrong clock must not make the broker delete data that is still
    // needed.
    broker.enqueue(new_job("t", "y").key("other").key_hold(HOUR)).await;
    broker
        .until("a sum of the statistics", "SELECT summed > now() - interval '1 minute' FROM howdah.statistics_sum")
        .await;

    database.set_clock("0").await;
    broker
        .until(
            "planned times in the next two days",
            "SELECT max(next_planned) < now() + interval '2 days' FROM howdah.schedule",
        )
        .await;
    until_relied_on(&broker, true).await;
    assert_eq!(broker.count(KEPT).await, 8);
    broker.stop().await;
}

#[tokio::test]
async fn old_data_is_deleted_when_the_clock_agrees_again() {
    let database = database_with_clock().await;
    database
        .sql("SELECT howdah.make_day_partition('history', 'finished', (now() AT TIME ZONE 'UTC')::date - 30)")
        .await;
    database.set_clock("-1 day").await;
    let broker = TestBroker::on_with(&database, |config| config.clock_settling = secs(1)).await;
    until_relied_on(&broker, false).await;
    let old = "SELECT count(*) FROM pg_class WHERE relname = to_char((pg_catalog.real_now() AT TIME ZONE 'UTC')::date - 30, '\"history_\"YYYYMMDD')";
    assert_eq!(broker.count(old).await, 1);
    database.set_clock("0").await;
    until_relied_on(&broker, true).await;
    broker.until("the drop of the old partition", &old.replace("count(*)", "count(*) = 0")).await;
    broker.stop().await;
}

/// Duration of each wait in the test below, longer than brokers need to aggregate statistics.
const WAIT: Duration = Duration::from_secs(12);

#[tokio::test]
async fn jobs_leases_and_schedules_wait_no_longer_when_the_clock_goes_back_an_hour() {
    let database = database_with_clock().await;
    database.set_clock("1 hour").await;
    let broker = TestBroker::on(&database).await;
    let gap = TaskTypeSettings { key_min_gap: Some(wire(WAIT)), ..Default::default() };
    broker.set("gap", gap).await;
    broker
        .set("rate", TaskTypeSettings { key_rate: Some(Rate { per_second: 0.1, burst: 1 }), ..Default::default() })
        .await;
    // Each type has two jobs with the same limit key, so the second job waits for the minimum gap or for the rate.
    let limited = ["gap", "gap", "rate", "rate"].map(|name| new_job(name, "").limit_key("x"));
    broker.enqueue_all(limited).await;
    let mut worker = broker.worker("gap").and("rate").window(10).await;
    for _ in 0..2 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    // Creates more waits of the duration `WAIT`: a job in backoff, a pulled job until its lease expires, and a paused
    // limit key.
    let mut other = broker.worker("retry").await;
    broker.enqueue("retry").await;
    let retried = other.next().await;
    other.nack(&retried, "not yet").retry_after(WAIT).await;
    let timed = broker.enqueue(new_job("timeout", "").timeout(WAIT)).await;
    let pulled = broker.pull("timeout").wait(MINUTE).lease(WAIT).await.remove(0);
    let pause = PauseLimitKeyRequest { task_type: "gap".into(), limit_key: "p".into(), duration: Some(wire(WAIT)) };
    with_timeout("an answer", broker.task_types().pause_limit_key(pause)).await.expect("pause");
    broker.enqueue(new_job("gap", "paused").limit_key("p")).await;
    let client = broker.client().await;
    client.create_schedule(NewSchedule::new("s", NewJob::new("planned"), Plan::every(secs(1)))).await.expect("create");
    let summed = "SELECT summed > now() - interval '1 minute' AND NOT EXISTS (SELECT FROM howdah.statistics_change) FROM howdah.statistics_sum";
    broker.until("a sum of the statistics", summed).await;

    database.set_clock("0").await;
    for _ in 0..3 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    assert_eq!(other.next().await.id, retried.id);
    eventually("the expiry of the pulled lease", async || broker.state(timed).await != JobState::Leased).await;
    assert_eq!(broker.settle(vec![ack(&pulled)]).await, [SettleStatus::LeaseLost]);
    let fired = broker.count("SELECT fired FROM howdah.schedule").await;
    broker.until("three more jobs of the schedule", &format!("SELECT fired > {fired} + 2 FROM howdah.schedule")).await;
    let enqueued = broker.enqueue("counted").await;
    broker.cancel(&[enqueued]).await;
    let counted = "SELECT EXISTS (SELECT FROM howdah.statistics s JOIN howdah.task_type t ON t.id = s.type_id WHERE t.name = 'counted')";
    broker.until("statistics of the last job", counted).await;
}
