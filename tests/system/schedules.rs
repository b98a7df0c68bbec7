//! Tests that a schedule enqueues one job per planned time, exactly once, whichever brokers run.

mod begin; // the first time of a period
mod definitions; // create, update, list, delete; bad input; the command line
mod policies; // overlap, drift, what was missed, pauses, runs by hand
mod zones; // rules that change, zones that a broker lacks

use std::time::{Duration, SystemTime};

use howdah_client::{Client, NewJob, NewSchedule, Plan};
use howdah_proto::v1::OverlapPolicy;

use crate::support::*;

async fn client(broker: &Service) -> Client {
    broker.client().await
}

/// Returns a schedule that fires every hour, first in one hour.
fn hourly(name: &str) -> NewSchedule {
    hourly_job(name, NewJob::new(name).payload("p"))
}

/// Returns a schedule that enqueues this job every hour, first in one hour.
fn hourly_job(name: &str, job: NewJob) -> NewSchedule {
    NewSchedule::new(name, job, Plan::every(HOUR)).start(SystemTime::now() + HOUR)
}

/// Simulates the passing of time for a schedule: moves its planned times back by `time`.
async fn pass(database: &TestDatabase, name: &str, time: &str) {
    let sql = format!(
        "UPDATE howdah.schedule SET anchor = anchor - interval '{time}', next_at = next_at - interval '{time}',
                next_planned = next_planned - interval '{time}', start_time = start_time - interval '{time}' WHERE name = '{name}'"
    );
    database.connect().await.batch_execute(&sql).await.expect("pass");
}

/// Reads a numeric column of a schedule.
async fn number(database: &TestDatabase, name: &str, what: &str) -> i64 {
    database.count(&format!("SELECT ({what})::bigint FROM howdah.schedule WHERE name = '{name}'")).await
}

async fn until_schedule(database: &TestDatabase, name: &str, what: &str) {
    until(database, what, &format!("SELECT coalesce({what}, false) FROM howdah.schedule WHERE name = '{name}'")).await;
}

#[tokio::test]
async fn each_planned_time_makes_one_job_with_that_time_in_a_header() {
    let (a, b) = TestBroker::pair().await;
    let made = client(&a).await.create_schedule(hourly("h")).await.expect("create");
    assert_eq!(made.next_times.len(), 10);
    let steps: Vec<i64> = made.next_times.windows(2).map(|pair| pair[1].seconds - pair[0].seconds).collect();
    assert_eq!(steps, [3600; 9]);
    let mut worker = b.worker("h").await;
    for fired in 1..=3 {
        pass(&a.database, "h", "1 hour").await;
        let job = worker.next().await;
        assert_eq!((job.headers["howdah-schedule"].as_str(), &job.payload[..]), ("h", &b"p"[..]));
        worker.ack(&job).await;
        until_schedule(&a.database, "h", &format!("fired = {fired}")).await;
        let planned = job.headers["howdah-planned-time"].clone();
        let sql = format!("last_planned = '{planned}' AND next_planned = last_planned + interval '1 hour'");
        until_schedule(&a.database, "h", &sql).await;
        assert_eq!(number(&a.database, "h", "last_job_id").await, job.id);
    }
    assert_eq!(a.count("SELECT count(*) FROM howdah.job").await, 3);
}

/// Asserts that each schedule has one job for each planned time, ten seconds apart, without gaps. Uses a single statement,
/// because a schedule may fire between two statements.
async fn assert_exactly_once(database: &TestDatabase, schedules: i64) {
    let sql = "SELECT name, j.jobs, j.times, j.span, s.fired::bigint, s.skipped::bigint,
                      extract(epoch FROM s.last_planned - s.anchor)::bigint
               FROM (SELECT headers ->> 'howdah-schedule' AS name,
                            count(*) AS jobs, count(DISTINCT headers ->> 'howdah-planned-time') AS times,
                            extract(epoch FROM max((headers ->> 'howdah-planned-time')::timestamptz)
                                             - min((headers ->> 'howdah-planned-time')::timestamptz))::bigint AS span
                     FROM howdah.job GROUP BY 1) j JOIN howdah.schedule s USING (name)";
    let rows = database.connect().await.query(sql, &[]).await.unwrap();
    assert_eq!(rows.len() as i64, schedules);
    for row in rows {
        let (name, jobs, times): (&str, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let (span, fired, skipped, last): (i64, i64, i64, i64) = (row.get(3), row.get(4), row.get(5), row.get(6));
        assert_eq!((times, span), (jobs, (jobs - 1) * 10), "{name}: {jobs} jobs");
        assert_eq!((fired, skipped), (jobs, 0), "{name}");
        assert_eq!(last, (jobs - 1) * 10, "{name}");
    }
}

/// Creates schedules that each have missed 720 planned times.
async fn overdue(database: &TestDatabase, broker: &Client, schedules: usize) {
    for n in 0..schedules {
        let plan = Plan::every(Duration::from_secs(10));
        let schedule = NewSchedule::new(format!("s{n}"), NewJob::new("many"), plan).missed_all(1000).paused(true);
        broker.create_schedule(schedule).await.expect("create");
    }
    let sql = "UPDATE howdah.schedule SET paused = false, anchor = now() - interval '2 hours',
                      next_planned = now() - interval '2 hours', next_at = now() - interval '2 hours'";
    database.connect().await.batch_execute(sql).await.expect("overdue");
}

const ALL_DONE: &str = "SELECT count(*) = 0 FROM howdah.schedule WHERE next_at < now() + interval '1 s'";

#[tokio::test]
async fn three_brokers_at_once_fire_each_planned_time_once() {
    let database = database().await;
    let brokers = [TestBroker::on(&database).await, TestBroker::on(&database).await, TestBroker::on(&database).await];
    overdue(&database, &client(&brokers[0]).await, 12).await;
    until(&database, "the jobs of all overdue times", ALL_DONE).await;
    assert!(database.count("SELECT count(*) FROM howdah.job").await >= 12 * 720);
    assert_exactly_once(&database, 12).await;
}

#[tokio::test]
async fn brokers_killed_while_they_fire_lose_no_planned_time_and_fire_none_twice() {
    let database = database().await;
    let mut broker = Program::serve(&database, &[]).await;
    overdue(&database, &client(&broker).await, 20).await;
    for round in 1..=4 {
        until(
            &database,
            "more jobs of overdue times",
            &format!("SELECT count(*) >= {} FROM howdah.job", round * 1_500),
        )
        .await;
        broker.kill().await;
        broker = Program::serve(&database, &[]).await;
    }
    until(&database, "the jobs of all overdue times", ALL_DONE).await;
    assert!(database.count("SELECT count(*) FROM howdah.job").await >= 20 * 720);
    assert_exactly_once(&database, 20).await;
}

#[tokio::test]
async fn a_schedule_with_an_invalid_template_shows_an_error_and_fires_after_a_correction() {
    let broker = TestBroker::start().await;
    client(&broker).await.create_schedule(hourly("t")).await.expect("create");
    client(&broker).await.create_schedule(hourly("fine")).await.expect("create");
    let update = "UPDATE howdah.schedule SET payload = decode(repeat('00', 2000000), 'hex') WHERE name = 't'";
    broker.sql(update).await;
    pass(&broker.database, "t", "1 hour").await;
    pass(&broker.database, "fine", "1 hour").await;
    until_schedule(&broker.database, "t", "last_error LIKE 'broker \"%\": template.payload has 2000000 bytes%'").await;
    until_schedule(&broker.database, "t", "fired = 0 AND next_at > now() + interval '30 s' AND next_planned < now()")
        .await;
    until_schedule(&broker.database, "fine", "fired = 1").await;
    let update = "UPDATE howdah.schedule SET payload = '', next_at = now() WHERE name = 't'";
    broker.sql(update).await;
    until_schedule(&broker.database, "t", "fired = 1 AND last_error IS NULL").await;
}

#[tokio::test]
async fn a_job_that_postgres_refuses_holds_up_no_other_schedule() {
    let broker = TestBroker::start().await;
    let refuse = "ALTER TABLE howdah.ready ADD CONSTRAINT no_seven CHECK (priority <> 7)";
    broker.sql(refuse).await;
    for n in 0..5 {
        let job = NewJob::new("t").priority(if n == 2 { 7 } else { n });
        client(&broker).await.create_schedule(hourly_job(&format!("s{n}"), job)).await.unwrap();
    }
    let due = "UPDATE howdah.schedule SET next_planned = now(), next_at = now()";
    broker.sql(due).await;
    let done = "SELECT count(*) = 4 FROM howdah.schedule WHERE fired = 1 AND name <> 's2'";
    broker.until("the other schedules", done).await;
    until_schedule(
        &broker.database,
        "s2",
        "last_error LIKE '%SQLSTATE 23514%' AND fired = 0 AND next_at > now() + interval '30 s'",
    )
    .await;
    // With `OneWaiting`, a planned time waits until the previous job has ended. If enqueueing then fails, the planned
    // time is skipped.
    let job = NewJob::new("w").delay(HOUR);
    let waits = hourly_job("w", job).overlap(OverlapPolicy::OneWaiting);
    client(&broker).await.create_schedule(waits).await.unwrap();
    pass(&broker.database, "w", "1 hour").await;
    until_schedule(&broker.database, "w", "fired = 1").await;
    pass(&broker.database, "w", "1 hour").await;
    until_schedule(&broker.database, "w", "held IS NOT NULL").await;
    let refuse =
        "ALTER TABLE howdah.scheduled ADD CONSTRAINT none CHECK (false) NOT VALID; DELETE FROM howdah.scheduled";
    broker.sql(refuse).await;
    until_schedule(
        &broker.database,
        "w",
        "last_error LIKE '%SQLSTATE 23514%' AND held IS NULL AND NOT watching AND skipped = 1",
    )
    .await;
    let allow = "ALTER TABLE howdah.ready DROP CONSTRAINT no_seven; UPDATE howdah.schedule SET next_at = now() WHERE name = 's2'";
    broker.sql(allow).await;
    until_schedule(&broker.database, "s2", "last_error IS NULL AND fired = 1").await;
}
