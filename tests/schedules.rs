//! Schedules: a job for each planned time, once, whoever is there to do it.

use std::time::Duration;

use howdah_client::{Client, NewJob, NewSchedule, Plan};
use howdah_proto::v1::{
    CreateScheduleRequest, Drift, GetScheduleRequest, ListSchedulesRequest, MissedPolicy, OverlapPolicy,
    RunScheduleRequest, Schedule, SettleStatus, TaskTypeSettings, UpdateScheduleRequest, UpdateTaskTypeRequest,
    schedule,
};
use rustix::process::Signal;
use serde_json::Value;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::support::{
    Program, TestBroker, TestDatabase, Worker, database, new_job, run, schedules_client, soon, task_types_client, until,
};

const HOUR: Duration = Duration::from_secs(3600);

async fn client(broker: &TestBroker) -> Client {
    soon("a connection", Client::connect(broker.grpc.clone())).await.expect("connect")
}

/// Fires every hour; the first is an hour away.
fn hourly(name: &str) -> NewSchedule {
    NewSchedule::new(name, NewJob::new(name).payload("p"), Plan::every(HOUR))
}

/// Time passes for a schedule: everything that it plans comes sooner by so much.
async fn pass(database: &TestDatabase, name: &str, time: &str) {
    let sql = format!(
        "UPDATE howdah.schedule SET anchor = anchor - interval '{time}', next_at = next_at - interval '{time}',
                next_planned = next_planned - interval '{time}' WHERE name = '{name}'"
    );
    database.connect().await.batch_execute(&sql).await.expect("pass");
}

/// A number of a schedule's.
async fn number(database: &TestDatabase, name: &str, what: &str) -> i64 {
    database.count(&format!("SELECT ({what})::bigint FROM howdah.schedule WHERE name = '{name}'")).await
}

async fn until_schedule(database: &TestDatabase, name: &str, what: &str) {
    until(database, what, &format!("SELECT coalesce({what}, false) FROM howdah.schedule WHERE name = '{name}'")).await;
}

#[tokio::test]
async fn a_planned_time_makes_one_job_that_knows_it_and_the_next_is_a_period_later() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let made = client(&a).await.create_schedule(hourly("h")).await.expect("create");
    assert_eq!(made.next_times.len(), 10);
    let steps: Vec<i64> = made.next_times.windows(2).map(|pair| pair[1].seconds - pair[0].seconds).collect();
    assert_eq!(steps, [3600; 9]);
    let mut worker = Worker::connect(&b.grpc, "h", 10).await;
    for fired in 1..=3 {
        pass(&database, "h", "1 hour").await;
        let job = worker.job().await;
        assert_eq!((job.headers["howdah-schedule"].as_str(), &job.payload[..]), ("h", &b"p"[..]));
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
        until_schedule(&database, "h", &format!("fired = {fired}")).await;
        let planned = job.headers["howdah-planned-time"].clone();
        let sql = format!("last_planned = '{planned}' AND next_planned = last_planned + interval '1 hour'");
        until_schedule(&database, "h", &sql).await;
        assert_eq!(number(&database, "h", "last_job_id").await, job.id);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 3);
}

/// The jobs of each schedule are for its planned times, ten seconds apart, without a hole, each once.
async fn assert_exactly_once(database: &TestDatabase, schedules: i64) {
    let sql = "SELECT headers ->> 'howdah-schedule' AS name,
                      count(*) AS jobs, count(DISTINCT headers ->> 'howdah-planned-time') AS times,
                      extract(epoch FROM max((headers ->> 'howdah-planned-time')::timestamptz)
                                       - min((headers ->> 'howdah-planned-time')::timestamptz))::bigint AS span
               FROM howdah.job GROUP BY 1";
    let rows = database.connect().await.query(sql, &[]).await.unwrap();
    assert_eq!(rows.len() as i64, schedules);
    for row in rows {
        let (name, jobs, times): (&str, i64, i64) = (row.get(0), row.get(1), row.get(2));
        assert_eq!((times, row.get::<_, i64>(3)), (jobs, (jobs - 1) * 10), "{name}: {jobs} jobs");
        assert_eq!(number(database, name, "fired").await, jobs, "{name}");
        assert_eq!(number(database, name, "skipped").await, 0, "{name}");
        let first = "extract(epoch FROM last_planned - anchor)";
        assert_eq!(number(database, name, first).await, (jobs - 1) * 10, "{name}");
    }
}

/// Schedules that have 720 planned times behind them.
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
    let brokers =
        [TestBroker::start(&database).await, TestBroker::start(&database).await, TestBroker::start(&database).await];
    overdue(&database, &client(&brokers[0]).await, 12).await;
    until(&database, "all that is overdue", ALL_DONE).await;
    assert!(database.count("SELECT count(*) FROM howdah.job").await >= 12 * 720);
    assert_exactly_once(&database, 12).await;
}

#[tokio::test]
async fn brokers_killed_while_they_fire_lose_no_planned_time_and_fire_none_twice() {
    let database = database().await;
    let (mut broker, grpc) = Program::serve(&database.url, &[]).await;
    let address = format!("http://{grpc}");
    overdue(&database, &soon("a connection", Client::connect(address)).await.expect("connect"), 20).await;
    for round in 1..=4 {
        until(&database, "jobs", &format!("SELECT count(*) >= {} FROM howdah.job", round * 1_500)).await;
        broker.signal(Signal::KILL);
        broker.ended().await;
        broker = Program::serve(&database.url, &[]).await.0;
    }
    until(&database, "all that is overdue", ALL_DONE).await;
    assert!(database.count("SELECT count(*) FROM howdah.job").await >= 20 * 720);
    assert_exactly_once(&database, 20).await;
}

#[tokio::test]
async fn with_overlap_skip_a_planned_time_is_left_out_while_a_job_is_not_finished() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let client = client(&broker).await;
    client.create_schedule(hourly("s").overlap(OverlapPolicy::Skip)).await.expect("create");
    let mut worker = Worker::connect(&broker.grpc, "s", 10).await;
    pass(&database, "s", "1 hour").await;
    let first = worker.job().await;
    pass(&database, "s", "1 hour").await;
    until_schedule(&database, "s", "skipped = 1").await;
    // It fails and waits for its next attempt: not finished.
    let mut failed = crate::support::nack(&first, "later");
    if let Some(howdah_proto::v1::outcome::Outcome::Nack(nack)) = &mut failed.outcome {
        nack.retry_after = Some(HOUR.try_into().unwrap());
    }
    worker.settle(vec![failed]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    pass(&database, "s", "1 hour").await;
    until_schedule(&database, "s", "skipped = 2").await;
    database.connect().await.batch_execute("UPDATE howdah.scheduled SET run_at = now()").await.unwrap();
    let again = worker.job().await;
    assert_eq!((again.id, worker.ack(&again).await.status()), (first.id, SettleStatus::Ok));
    pass(&database, "s", "1 hour").await;
    let second = worker.job().await;
    assert!(second.id > first.id);
    assert_eq!((number(&database, "s", "fired").await, number(&database, "s", "skipped").await), (2, 2));
}

#[tokio::test]
async fn with_one_waiting_the_next_begins_when_the_job_has_finished_and_the_rest_is_left_out() {
    let database = database().await;
    let (broker, _other) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let client = client(&broker).await;
    client.create_schedule(hourly("w").overlap(OverlapPolicy::OneWaiting)).await.expect("create");
    let mut worker = Worker::connect(&broker.grpc, "w", 10).await;
    pass(&database, "w", "1 hour").await;
    let first = worker.job().await;
    pass(&database, "w", "1 hour").await;
    until_schedule(&database, "w", "held IS NOT NULL").await;
    let waiting = client.get_schedule("w").await.expect("get").expect("there").waiting_time.expect("it waits");
    pass(&database, "w", "1 hour").await;
    until_schedule(&database, "w", "skipped = 1").await;
    assert_eq!(number(&database, "w", "fired").await, 1, "nothing overlaps");
    assert_eq!(worker.ack(&first).await.status(), SettleStatus::Ok);
    let second = worker.job().await;
    let planned: prost_types::Timestamp = second.headers["howdah-planned-time"].parse().unwrap();
    assert_eq!(planned.seconds, waiting.seconds);
    assert_eq!(number(&database, "w", "fired").await, 2);
    until_schedule(&database, "w", "held IS NULL AND NOT watching").await;
}

#[tokio::test]
async fn with_drift_from_the_end_the_period_begins_when_the_job_has_ended() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let client = client(&broker).await;
    let made = client.create_schedule(hourly("e").drift(Drift::End)).await.expect("create");
    assert_eq!(made.next_times.len(), 1);
    let mut worker = Worker::connect(&broker.grpc, "e", 10).await;
    pass(&database, "e", "1 hour").await;
    let job = worker.job().await;
    until_schedule(&database, "e", "watching AND next_planned IS NULL").await;
    assert!(client.get_schedule("e").await.unwrap().unwrap().next_times.is_empty());
    assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    let from = |table: &str, time: &str, id: i64| {
        format!(
            "NOT watching AND next_planned = (SELECT {time} + interval '1 hour' FROM howdah.{table} WHERE id = {id})"
        )
    };
    until_schedule(&database, "e", &from("history", "finished", job.id)).await;
    // A dead job has ended too.
    pass(&database, "e", "1 hour").await;
    let job = worker.job().await;
    let mut fatal = crate::support::nack(&job, "for good");
    if let Some(howdah_proto::v1::outcome::Outcome::Nack(nack)) = &mut fatal.outcome {
        (nack.no_retry, nack.retry_after) = (true, None);
    }
    worker.settle(vec![fatal]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    until_schedule(&database, "e", &from("dead", "died", job.id)).await;
    // One that leaves no trace ends when that is seen.
    let settings = Some(TaskTypeSettings { history: 3, ..Default::default() });
    let request = UpdateTaskTypeRequest { task_type: "e".into(), settings };
    task_types_client(&broker.grpc).await.update_task_type(request).await.expect("settings");
    pass(&database, "e", "1 hour").await;
    let job = worker.job().await;
    worker.ack(&job).await;
    until_schedule(&database, "e", "NOT watching AND next_planned > now() + interval '59 minutes'").await;
    assert_eq!(number(&database, "e", "fired").await, 3);
}

#[tokio::test]
async fn of_what_was_missed_nothing_the_newest_or_the_newest_few_is_made_up_for() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let names = ["skip", "one", "all"];
    for (name, policy) in names.iter().zip([MissedPolicy::Skip, MissedPolicy::One, MissedPolicy::All]) {
        let schedule = hourly(name).missed(policy);
        let schedule = if policy == MissedPolicy::All { schedule.missed_all(3) } else { schedule };
        client(&broker).await.create_schedule(schedule).await.expect("create");
    }
    // Nobody is there; ten planned times pass, the last half an hour ago.
    broker.stop().await;
    for name in names {
        pass(&database, name, "10 hours 30 minutes").await;
    }
    let _broker = TestBroker::start(&database).await;
    for (name, fired) in names.iter().zip([0, 1, 3]) {
        until_schedule(&database, name, &format!("fired = {fired} AND skipped = {}", 10 - fired)).await;
        until_schedule(&database, name, "next_planned BETWEEN now() AND now() + interval '31 minutes'").await;
        let newest = format!(
            "SELECT count(*) FROM howdah.job WHERE task_type = '{name}'
             AND (headers ->> 'howdah-planned-time')::timestamptz > now() - interval '{fired} hours'"
        );
        assert_eq!(database.count(&newest).await, fired, "{name}");
    }
}

#[tokio::test]
async fn a_paused_schedule_fires_nothing_until_it_is_resumed_and_makes_up_for_nothing() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let client = client(&broker).await;
    client.create_schedule(hourly("p")).await.expect("create");
    client.create_schedule(hourly("other")).await.expect("create");
    let paused = client.pause_schedule("p").await.expect("pause");
    assert!(paused.paused && paused.next_times.is_empty());
    pass(&database, "p", "5 hours 30 minutes").await;
    pass(&database, "other", "1 hour").await;
    until_schedule(&database, "other", "fired = 1").await;
    assert_eq!(number(&database, "p", "fired").await, 0);
    let resumed = client.resume_schedule("p").await.expect("resume");
    assert_eq!((resumed.paused, resumed.next_times.len()), (false, 10));
    until_schedule(&database, "p", "next_planned BETWEEN now() AND now() + interval '31 minutes'").await;
    pass(&database, "p", "31 minutes").await;
    until_schedule(&database, "p", "fired = 1 AND skipped = 0").await;
}

#[tokio::test]
async fn run_now_enqueues_besides_the_plan_and_a_repeat_finds_the_same_job() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    client(&broker).await.create_schedule(hourly("r").overlap(OverlapPolicy::Skip).paused(true)).await.expect("create");
    client(&broker).await.create_schedule(hourly("r2")).await.expect("create");
    let before = number(&database, "r", "extract(epoch FROM next_planned) * 1000000").await;
    let mut schedules = schedules_client(&broker.grpc).await;
    let mut run = async |name: &str, key: &str| {
        let request = RunScheduleRequest { name: name.into(), request_key: key.into() };
        schedules.run_schedule(request).await.map(|answer| answer.into_inner().job.expect("a job"))
    };
    let first = run("r", "k").await.expect("run");
    let again = run("r", "k").await.expect("run");
    assert_eq!((first.is_new, again.is_new, again.id), (true, false, first.id));
    let second = run("r", "").await.expect("run");
    assert!(second.is_new && second.id != first.id);
    let other = run("r2", "k").await.expect_err("the key was used for another schedule");
    assert_eq!(other.code(), Code::AlreadyExists);
    assert_eq!(run("nobody", "").await.expect_err("there is none").code(), Code::NotFound);
    assert_eq!(number(&database, "r", "fired").await, 2);
    assert_eq!(number(&database, "r", "extract(epoch FROM next_planned) * 1000000").await, before);
    let mut worker = Worker::connect(&broker.grpc, "r", 10).await;
    assert_eq!([worker.job().await.id, worker.job().await.id], [first.id, second.id]);
    // What was run by hand counts as running.
    client(&broker).await.resume_schedule("r").await.expect("resume");
    pass(&database, "r", "1 hour").await;
    until_schedule(&database, "r", "skipped = 1 AND fired = 2").await;
}

#[tokio::test]
async fn a_definition_is_made_once_replaced_and_deleted() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let client = client(&broker).await;
    let job = || NewJob::new("d").payload("p").header("a", "1").header("b", "2").header("c", "3");
    let schedule = || NewSchedule::new("d", job(), Plan::every(HOUR));
    let made = client.create_schedule(schedule()).await.expect("create");
    let again = client.create_schedule(schedule()).await.expect("the same again");
    assert_eq!(again.next_times, made.next_times);
    let error = client.create_schedule(schedule().overlap(OverlapPolicy::Skip)).await.expect_err("another");
    assert_eq!(error.code(), Code::AlreadyExists);
    let updated = client.update_schedule(hourly("d").overlap(OverlapPolicy::Skip), false).await.expect("update");
    assert_eq!((&updated.next_times, updated.overlap()), (&made.next_times, OverlapPolicy::Skip));
    assert_eq!(&updated.template.unwrap().payload[..], b"p");
    let slower = NewSchedule::new("d", NewJob::new("d"), Plan::every(HOUR * 2));
    let updated = client.update_schedule(slower, false).await.expect("update");
    assert!(updated.next_times[0].seconds >= made.next_times[0].seconds + 3600, "planned anew from now");
    assert_eq!(client.update_schedule(hourly("n"), false).await.expect_err("none").code(), Code::NotFound);
    client.update_schedule(hourly("n"), true).await.expect("made");
    let names: Vec<String> = client.list_schedules().await.expect("list").into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["d", "n"]);
    assert!(client.delete_schedule("d").await.expect("delete"));
    assert!(!client.delete_schedule("d").await.expect("delete"));
    assert!(client.get_schedule("d").await.expect("get").is_none());
    assert_eq!(client.pause_schedule("d").await.expect_err("none").code(), Code::NotFound);
}

#[tokio::test]
async fn a_list_comes_in_pages_without_payloads() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let client = client(&broker).await;
    for n in 0..5 {
        let job = NewJob::new("l").payload(vec![b'x'; 1 << 20]).header("h", "x".repeat(6000));
        client.create_schedule(NewSchedule::new(format!("l{n}"), job, Plan::every(HOUR))).await.expect("create");
    }
    let mut schedules = schedules_client(&broker.grpc).await;
    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListSchedulesRequest { page_size: 2, page_token };
        let page = schedules.list_schedules(request).await.expect("list").into_inner();
        assert!(page.schedules.len() <= 2);
        for schedule in page.schedules {
            let template = schedule.template.unwrap();
            assert_eq!((template.payload.len(), template.headers.len(), schedule.next_times.len()), (0, 1, 1));
            names.push(schedule.name);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["l0", "l1", "l2", "l3", "l4"]);
    let whole = schedules.get_schedule(GetScheduleRequest { name: "l0".into() }).await.expect("get").into_inner();
    assert_eq!(whole.schedule.unwrap().template.unwrap().payload.len(), 1 << 20);
    let bad = ListSchedulesRequest { page_token: "0174".into(), ..Default::default() };
    assert_eq!(schedules.list_schedules(bad).await.expect_err("another list's").code(), Code::InvalidArgument);
}

#[tokio::test]
async fn bad_input_names_its_field_and_nothing_is_stored() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut schedules = schedules_client(&broker.grpc).await;
    let good = || hourly("bad").into_proto();
    let cron = |expression: &str, time_zone: &str| {
        let cron = howdah_proto::v1::Cron { expression: expression.into(), time_zone: time_zone.into() };
        Schedule { plan: Some(schedule::Plan::Cron(cron)), ..good() }
    };
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let zero = prost_types::Duration { seconds: 0, nanos: 0 };
    let cases = [
        ("schedule.cron.time_zone", cron("0 3 * * *", "Europe/Atlantis")),
        ("schedule.cron.time_zone", cron("0 3 * * *", "")),
        ("schedule.cron.expression", cron("at three", "UTC")),
        ("schedule.cron.expression", cron("0 3 30 2 *", "UTC")),
        ("schedule.period", Schedule { plan: Some(schedule::Plan::Period(zero)), ..good() }),
        ("schedule.plan", Schedule { plan: None, ..good() }),
        ("schedule.end_time", Schedule { start_time: at(4_000_000_000), end_time: at(3_999_999_999), ..good() }),
        ("schedule.end_time", Schedule { end_time: at(1_000_000_000), ..good() }),
        ("schedule.name", Schedule { name: "a b".into(), ..good() }),
        ("schedule.template", Schedule { template: None, ..good() }),
        ("schedule.template.task_type", Schedule { template: Some(new_job("a b", "")), ..good() }),
        ("schedule.missed_limit", Schedule { missed_limit: 7, ..good() }),
    ];
    for (field, schedule) in cases {
        for update in [false, true] {
            let schedule = Some(schedule.clone());
            let status = if update {
                let request = UpdateScheduleRequest { schedule, allow_missing: true };
                schedules.update_schedule(request).await.map(drop)
            } else {
                schedules.create_schedule(CreateScheduleRequest { schedule }).await.map(drop)
            };
            let status = status.expect_err(field);
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            let violations = status.get_error_details().bad_request().expect("a BadRequest").field_violations.clone();
            assert_eq!(violations[0].field, field, "{status:?}");
        }
    }
    let stored = "SELECT (SELECT count(*) FROM howdah.schedule) + (SELECT count(*) FROM howdah.task_type)";
    assert_eq!(database.count(stored).await, 0);
}

#[tokio::test]
async fn a_calendar_shows_its_next_ten_times_where_it_is_at_home() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let nightly = NewSchedule::new("c", NewJob::new("c"), Plan::cron("30 2 * * *", "Europe/Berlin"));
    let start = std::time::UNIX_EPOCH + Duration::from_secs(2_468_620_800);
    let made = client(&broker).await.create_schedule(nightly.start(start)).await.expect("create");
    // It begins on 24 March 2048; on the 29th, a Sunday, 02:30 is left out and it runs at 03:00.
    let times: Vec<i64> = made.next_times.iter().map(|time| time.seconds).collect();
    assert_eq!(times.len(), 10);
    let sql =
        |time: &i64| format!("SELECT extract(hour FROM to_timestamp({time}) AT TIME ZONE 'Europe/Berlin')::bigint");
    let mut hours = Vec::new();
    for time in &times {
        hours.push(database.count(&sql(time)).await);
    }
    assert_eq!(hours.iter().filter(|hour| **hour == 3).count(), 1, "{hours:?} {times:?}");
    assert_eq!(hours.iter().filter(|hour| **hour == 2).count(), 9, "{hours:?} {times:?}");
}

#[tokio::test]
async fn a_template_that_is_no_job_any_more_says_so_and_fires_once_it_is_one_again() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    client(&broker).await.create_schedule(hourly("t")).await.expect("create");
    client(&broker).await.create_schedule(hourly("fine")).await.expect("create");
    let update = "UPDATE howdah.schedule SET payload = decode(repeat('00', 2000000), 'hex') WHERE name = 't'";
    database.connect().await.batch_execute(update).await.unwrap();
    pass(&database, "t", "1 hour").await;
    pass(&database, "fine", "1 hour").await;
    until_schedule(&database, "t", "last_error LIKE 'template.payload has 2000000 bytes%'").await;
    until_schedule(&database, "t", "fired = 0 AND next_at > now() + interval '30 s' AND next_planned < now()").await;
    until_schedule(&database, "fine", "fired = 1").await;
    let update = "UPDATE howdah.schedule SET payload = '', next_at = now() WHERE name = 't'";
    database.connect().await.batch_execute(update).await.unwrap();
    until_schedule(&database, "t", "fired = 1 AND last_error IS NULL").await;
}

#[tokio::test]
async fn a_job_that_postgres_refuses_holds_up_no_other_schedule() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let refuse = "ALTER TABLE howdah.ready ADD CONSTRAINT no_seven CHECK (priority <> 7)";
    database.connect().await.batch_execute(refuse).await.unwrap();
    for n in 0..5 {
        let job = NewJob::new("t").priority(if n == 2 { 7 } else { n });
        client(&broker).await.create_schedule(NewSchedule::new(format!("s{n}"), job, Plan::every(HOUR))).await.unwrap();
    }
    let due = "UPDATE howdah.schedule SET next_planned = now(), next_at = now()";
    database.connect().await.batch_execute(due).await.unwrap();
    let done = "SELECT count(*) = 4 FROM howdah.schedule WHERE fired = 1 AND name <> 's2'";
    until(&database, "the others", done).await;
    until_schedule(&database, "s2", "last_error LIKE '%no_seven%' AND fired = 0 AND next_at > now() + interval '30 s'")
        .await;
    let allow = "ALTER TABLE howdah.ready DROP CONSTRAINT no_seven; UPDATE howdah.schedule SET next_at = now() WHERE name = 's2'";
    database.connect().await.batch_execute(allow).await.unwrap();
    until_schedule(&database, "s2", "last_error IS NULL AND fired = 1").await;
}

#[tokio::test]
async fn while_another_job_holds_the_templates_key_a_planned_time_is_left_out() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let client = client(&broker).await;
    let holder = client.enqueue(NewJob::new("k").key("one")).await.expect("enqueue").id;
    let schedule = NewSchedule::new("k", NewJob::new("k").key("one"), Plan::every(HOUR));
    client.create_schedule(schedule).await.expect("create");
    pass(&database, "k", "1 hour").await;
    until_schedule(&database, "k", "skipped = 1 AND fired = 0").await;
    let run = client.run_schedule("k").await.expect("run");
    assert_eq!(run.id, holder);
    client.cancel_jobs([holder]).await.expect("cancel");
    pass(&database, "k", "1 hour").await;
    until_schedule(&database, "k", "fired = 1").await;
}

#[tokio::test]
async fn every_option_of_a_job_is_in_the_jobs_of_a_schedule() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let job = NewJob::new("o")
        .payload(vec![7; 5_000])
        .header("mine", "1")
        .priority(-3)
        .delay(HOUR)
        .max_attempts(4)
        .key("key")
        .timeout(Duration::from_secs(9));
    client(&broker).await.create_schedule(NewSchedule::new("o", job, Plan::every(HOUR))).await.expect("create");
    pass(&database, "o", "1 hour").await;
    until_schedule(&database, "o", "fired = 1").await;
    let wanted = "SELECT count(*) FROM howdah.scheduled s JOIN howdah.payload p USING (id)
                  WHERE priority = -3 AND max_attempts = 4 AND key = 'key' AND timeout_ms = 9000
                    AND headers ->> 'mine' = '1' AND octet_length(p.data) = 5000
                    AND run_at > now() + interval '59 minutes'";
    assert_eq!(database.count(wanted).await, 1);
}

#[tokio::test]
async fn the_command_line_does_all_of_it() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let schedule = async |args: &[&str]| -> Result<String, (Option<i32>, String)> {
        let (status, out, err) = run(&[&["schedule"], args, &["--server", &broker.grpc]].concat(), b"").await;
        if status.success() { Ok(out) } else { Err((status.code(), err)) }
    };
    let json = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    let create = ["create", "n", "report", "daily", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--json"];
    let made = json(schedule(&[&create[..], &["--overlap", "skip", "--priority", "-5"]].concat()).await.unwrap());
    assert_eq!((&made["cron"], &made["overlap"]), (&"30 2 * * *".into(), &"skip".into()));
    assert_eq!((made["next_times"].as_array().unwrap().len(), &made["priority"]), (10, &(-5).into()));
    schedule(&["create", "e", "tidy", "--every", "5m", "--jitter", "10s", "--drift", "end"]).await.unwrap();
    let list = schedule(&["list"]).await.unwrap();
    assert!(
        list.contains("every 5m from the end of the last, up to 10s late") && list.contains("30 2 * * *"),
        "{list}"
    );
    let updated = json(schedule(&["update", "n", "--cron", "0 4 * * *", "--json"]).await.unwrap());
    assert_eq!((&updated["cron"], &updated["payload_text"]), (&"0 4 * * *".into(), &"daily".into()));
    let shown = schedule(&["show", "n"]).await.unwrap();
    assert_eq!(shown.matches("T04:00:00+0").count(), 10, "{shown}");
    let paused = json(schedule(&["pause", "n", "--json"]).await.unwrap());
    assert_eq!((&paused["paused"], paused["next_times"].as_array().unwrap().len()), (&true.into(), 0));
    schedule(&["resume", "n"]).await.unwrap();
    let id: i64 = schedule(&["run", "n"]).await.unwrap().trim().parse().unwrap();
    assert_eq!(number(&database, "n", "last_job_id").await, id);
    schedule(&["delete", "n"]).await.unwrap();
    assert_eq!(schedule(&["show", "n"]).await.unwrap_err().0, Some(1));
    let (status, error) =
        schedule(&["create", "x", "t", "--cron", "0 3 * * *", "--time-zone", "Mars"]).await.unwrap_err();
    assert!(status == Some(65) && error.contains("schedule.cron.time_zone"), "{status:?} {error}");
    assert_eq!(schedule(&["create", "x", "t"]).await.unwrap_err().0, Some(2));
    assert_eq!(schedule(&["update", "e", "--priority", "3"]).await.unwrap_err().0, Some(2));
}
