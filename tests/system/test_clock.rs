//! Tests the clock of `howdah dev --ephemeral`, which tests of applications advance. Each wait in these tests is days or hours
//! long, so it ends only because the clock has advanced.

use std::time::{Duration, SystemTime};

use howdah_client::{NewJob, NewSchedule, Plan};
use howdah_proto::v1::{AdvanceClockRequest, CancelReason, JobState, Rate, SettleStatus, TaskTypeSettings};
use tonic::Code;

use crate::{access::Guarded, support::*};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn start() -> TestBroker {
    TestBroker::on(&database_with_test_clock().await).await
}

async fn try_advance(broker: &Service, duration: Duration) -> Result<SystemTime, Refusal> {
    let request = AdvanceClockRequest { duration: Some(wire(duration)) };
    let answer = with_timeout("an answer", broker.settings().advance_clock(request)).await.map_err(Refusal::from)?;
    Ok(answer.into_inner().time.expect("a time").try_into().expect("a time"))
}

async fn advance(broker: &Service, duration: Duration) -> SystemTime {
    try_advance(broker, duration).await.expect("an advance")
}

/// Returns the error of a statement: its SQLSTATE and its message.
async fn sql_error(client: &tokio_postgres::Client, sql: &str) -> (String, String) {
    let error = client.batch_execute(sql).await.expect_err(sql);
    let error = error.as_db_error().expect("an error of Postgres");
    (error.code().code().to_owned(), error.message().to_owned())
}

#[tokio::test]
async fn delayed_jobs_and_retries_run_as_soon_as_the_clock_has_advanced() {
    let broker = start().await;
    let mut worker = broker.worker("t").await;
    let delayed = broker.enqueue(new_job("t", "x").delay(3 * DAY)).await;
    assert_eq!(broker.state(delayed).await, JobState::Scheduled);
    let before = SystemTime::now();
    let time = advance(&broker, 3 * DAY).await;
    assert!(time >= before + 3 * DAY, "{time:?}");
    let job = worker.next().await;
    assert_eq!(job.id, delayed);
    worker.nack(&job, "not yet").retry_after(5 * HOUR).await;
    advance(&broker, 5 * HOUR).await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (delayed, 2));
    worker.ack(&again).await;
}

#[tokio::test]
async fn an_advance_by_sql_reaches_every_broker() {
    let a = start().await;
    let b = a.another().await;
    let mut worker = b.worker("t").await;
    let delayed = a.enqueue(new_job("t", "x").delay(3 * DAY)).await;
    a.sql("SELECT howdah.advance('3 days')").await;
    assert_eq!(worker.next().await.id, delayed);
    let other = b.enqueue(new_job("t", "x").delay(DAY)).await;
    advance(&a, DAY).await;
    assert_eq!(worker.next().await.id, other);
    let recorded =
        "SELECT array_agg(method || ' ' || changes[1] ORDER BY id) = '{howdah.advance clock_ahead: 00:00:00 -> 3 days,
                    AdvanceClock clock_ahead: 3 days -> 4 days}' FROM howdah.audit";
    a.until("both changes in the audit", recorded).await;
}

#[tokio::test]
async fn schedules_fire_at_the_planned_times_of_the_advanced_clock() {
    let broker = start().await;
    let client = broker.client().await;
    let plans = [("daily", Plan::cron("30 2 * * *", "Europe/Berlin")), ("period", Plan::every(5 * HOUR))];
    for (name, plan) in plans {
        client.create_schedule(NewSchedule::new(name, NewJob::new(name), plan)).await.expect("create");
    }
    broker.until("the first job of the period", "SELECT fired = 1 FROM howdah.schedule WHERE name = 'period'").await;
    for days in 1..=2 {
        advance(&broker, DAY).await;
        let fired = format!("SELECT bool_and(fired >= {days} AND next_planned > now()) FROM howdah.schedule");
        broker.until("jobs of both schedules", &fired).await;
    }
    let times = "SELECT to_char(last_planned AT TIME ZONE 'Europe/Berlin', 'HH24:MI') = '02:30'
                 FROM howdah.schedule WHERE name = 'daily'";
    broker.until("a planned time of the cron expression", times).await;
}

#[tokio::test]
async fn timeouts_of_running_jobs_and_leases_of_pulled_jobs_follow_and_other_leases_go_on() {
    let broker = start().await;
    let mut worker = broker.worker("timed").and("untimed").window(10).await;
    let timed = broker.enqueue(new_job("timed", "x").timeout(2 * HOUR)).await;
    assert_eq!(worker.next().await.id, timed);
    broker.enqueue("untimed").await;
    let untimed = worker.next().await;
    let pulled = broker.enqueue("pulled").await;
    let lease = broker.pull("pulled").lease(HOUR).await.remove(0);
    advance(&broker, 30 * DAY).await;
    let cancelled = worker.cancelled().await;
    assert_eq!((cancelled.id, cancelled.reason()), (timed, CancelReason::Timeout));
    eventually("the end of the pulled lease", async || broker.state(pulled).await != JobState::Leased).await;
    assert_eq!(broker.settle(vec![ack(&lease)]).await, [SettleStatus::LeaseLost]);
    assert_eq!(worker.ack(&untimed).status().await, SettleStatus::Ok);
}

#[tokio::test]
async fn rates_and_expiry_follow() {
    let broker = start().await;
    let rate = Some(Rate { per_second: 1.0 / 3600.0, burst: 1 });
    broker.set("rate", TaskTypeSettings { rate, ..Default::default() }).await;
    let mut worker = broker.worker("rate").window(10).await;
    let jobs = broker.enqueue_all(["rate", "rate"]).await;
    assert_eq!(worker.next().await.id, jobs[0]);
    let expiring = broker.enqueue(new_job("nobody", "x").expire_after(DAY)).await;
    advance(&broker, 25 * HOUR).await;
    assert_eq!(worker.next().await.id, jobs[1]);
    eventually("an expired job", async || broker.state(expiring).await == JobState::Expired).await;
}

#[tokio::test]
async fn history_beyond_its_retention_is_deleted_without_a_wait_for_the_next_round() {
    let broker = start().await;
    let id = broker.enqueue("t").await;
    broker.cancel(&[id]).await;
    for _ in 0..3 {
        advance(&broker, 3 * DAY).await;
    }
    broker.until("deleted history", "SELECT NOT EXISTS (SELECT FROM howdah.history)").await;
    let today = "SELECT howdah.has_table('history' || to_char(now() AT TIME ZONE 'UTC', '_YYYYMMDD'))";
    broker.until("a partition of the new day", today).await;
}

#[tokio::test]
async fn only_the_database_of_a_test_has_a_clock_that_can_be_advanced() {
    let broker = TestBroker::start().await;
    let refused = try_advance(&broker, HOUR).await.expect_err("a refusal");
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains("only the databases of `howdah dev --ephemeral`"), "{refused}");
    let (code, message) = sql_error(&broker.database.connect().await, "SELECT howdah.advance('1 hour')").await;
    assert_eq!(code, "55000");
    assert!(message.contains("only the databases of howdah dev --ephemeral"), "{message}");
}

#[tokio::test]
async fn a_clock_goes_only_forward_and_at_most_ten_years() {
    let broker = start().await;
    for duration in [Duration::ZERO, 3651 * DAY] {
        try_advance(&broker, duration).await.expect_err("a refusal").names("duration");
    }
    let client = broker.database.connect().await;
    for by in ["'0'", "'-1 second'", "'3651 days'", "'178000000 years'", "NULL"] {
        let (code, message) = sql_error(&client, &format!("SELECT howdah.advance({by})")).await;
        assert_eq!(code, "22023", "{by}: {message}");
        assert!(message.starts_with("by is ") && message.contains("at most 3650 days"), "{by}: {message}");
    }
    advance(&broker, 3650 * DAY).await;
    try_advance(&broker, HOUR).await.expect_err("a refusal").names("duration");
    let (code, message) = sql_error(&client, "SELECT howdah.advance('1 hour')").await;
    assert_eq!((&*code, message.contains("at most 00:00:00")), ("22023", true), "{message}");
}

#[tokio::test]
async fn only_administrators_may_advance_the_clock() {
    let guarded = Guarded::start_on(&database_with_test_clock().await).await;
    let operator = guarded.caller("ann", &["operate:*", "work:*"]).await;
    let refused = try_advance(&operator, HOUR).await.expect_err("a refusal");
    assert_eq!(refused.code, Code::PermissionDenied);
    assert!(refused.message.contains("admin:*"), "{refused}");
    advance(&guarded.admin, HOUR).await;
    let role = format!("{}_client", guarded.broker.database.name());
    let client = guarded.broker.database.connect().await;
    let create = format!(
        "SELECT howdah.create_roles(); CREATE ROLE {role};
         GRANT howdah_producer, howdah_worker, howdah_reader TO {role}; SET ROLE {role}"
    );
    client.batch_execute(&create).await.expect(&create);
    let (code, message) = sql_error(&client, "SELECT howdah.advance('1 hour')").await;
    assert_eq!((&*code, &*message), ("42501", "permission denied for function advance"));
}

#[tokio::test]
async fn the_command_advances_the_clock_and_prints_the_new_time() {
    let broker = start().await;
    let mut worker = broker.worker("t").await;
    let delayed = broker.enqueue(new_job("t", "x").delay(3 * DAY)).await;
    let (status, printed, errors) = run(&["--server", &broker.grpc, "settings", "advance", "3d"], b"").await;
    assert!(status.success(), "{errors}");
    let time: prost_types::Timestamp = printed.trim().parse().expect("a time");
    assert!(SystemTime::try_from(time).expect("a time") > SystemTime::now() + 2 * DAY, "{printed}");
    assert_eq!(worker.next().await.id, delayed);
}
