//! Limits: how many jobs of a type or a limit key run at once, and how fast they begin.

use std::{collections::HashMap, time::Duration};

use howdah_proto::v1::{
    JobState, LeasedJob, ListLimitKeysRequest, NewJob, PauseLimitKeyRequest, Rate, ResumeLimitKeyRequest,
    TaskTypeSettings, UpdateTaskTypeRequest,
};
use tonic::Code;

use super::{get, ids};
use crate::{
    settings::until_read,
    support::{Program, TestBroker, Worker, ack, database, metrics, nack, new_job, soon, task_types_client, until},
};

fn keyed(key: &str) -> NewJob {
    NewJob { limit_key: key.into(), ..new_job("work", key.to_owned()) }
}

async fn set(broker: &TestBroker, settings: TaskTypeSettings) {
    let request = UpdateTaskTypeRequest { task_type: "work".into(), settings: Some(settings) };
    task_types_client(&broker.grpc).await.update_task_type(request).await.expect("settings");
}

/// Receives jobs until so many are held, and checks that no more come while Postgres holds the rest back.
async fn take(worker: &mut Worker, count: usize) -> Vec<LeasedJob> {
    let mut jobs = Vec::new();
    for _ in 0..count {
        jobs.push(worker.job().await);
    }
    jobs
}

#[tokio::test]
async fn no_more_jobs_of_a_key_run_at_once_than_allowed_on_two_brokers() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set(&a, TaskTypeSettings { key_max_running: 2, ..Default::default() }).await;
    let mut left = Worker::connect(&a.grpc, "work", 1).await;
    let mut right = Worker::connect(&b.grpc, "work", 1).await;
    for _ in 0..6 {
        ids(&a, vec![keyed("x"), keyed("y")]).await;
    }
    let busiest = "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM (
        SELECT options FROM howdah.leased UNION ALL SELECT options FROM howdah.ready) j GROUP BY options ->> 'limit_key') c";
    let mut seen: HashMap<String, usize> = HashMap::new();
    for _ in 0..6 {
        let (one, two) = (left.job().await, right.job().await);
        for job in [&one, &two] {
            *seen.entry(String::from_utf8(job.payload.to_vec()).unwrap()).or_default() += 1;
        }
        assert!(database.count(busiest).await <= 2);
        tokio::join!(left.ack(&one), right.ack(&two));
    }
    assert_eq!(seen, HashMap::from([("x".into(), 6), ("y".into(), 6)]));
}

#[tokio::test]
async fn with_one_at_a_time_the_jobs_of_a_key_run_in_their_order() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    set(&broker, TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let jobs = ids(&broker, (0..20).map(|_| keyed("x")).collect()).await;
    let mut worker = Worker::connect(&broker.grpc, "work", 50).await;
    for id in jobs {
        let job = worker.job().await;
        assert_eq!((job.id, worker.buffered()), (id, 0));
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn a_job_that_backs_off_lets_others_pass_unless_the_order_is_strict() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "work", 50).await;
    for strict in [false, true] {
        set(&broker, TaskTypeSettings { key_max_running: 1, key_strict_order: strict, ..Default::default() }).await;
        let jobs = ids(&broker, vec![keyed("x"), keyed("x")]).await;
        let first = worker.job().await;
        let mut later = nack(&first, "later");
        if let Some(howdah_proto::v1::outcome::Outcome::Nack(nack)) = &mut later.outcome {
            nack.retry_after = Some(Duration::from_secs(3600).try_into().unwrap());
        }
        worker.settle(vec![later]).await;
        worker.settled().await;
        if strict {
            until(&database, "the look", "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())")
                .await;
            assert_eq!(get(&broker, jobs[1]).await.state(), JobState::Waiting);
        } else {
            let second = worker.job().await;
            assert_eq!(second.id, jobs[1]);
            worker.ack(&second).await;
        }
        until(&database, "the time", "UPDATE howdah.scheduled SET run_at = now() RETURNING true").await;
        let again = worker.job().await;
        assert_eq!((again.id, again.attempt), (jobs[0], 2));
        worker.ack(&again).await;
        if strict {
            let second = worker.job().await;
            assert_eq!(second.id, jobs[1]);
            worker.ack(&second).await;
        }
    }
}

#[tokio::test]
async fn a_limit_on_a_type_holds_over_all_brokers_and_ends_when_it_is_lifted() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set(&a, TaskTypeSettings { max_running: 3, ..Default::default() }).await;
    until_read(&database, &a, &b).await;
    let mut left = Worker::connect(&a.grpc, "work", 50).await;
    ids(&a, (0..10).map(|n| new_job("work", n.to_string())).collect()).await;
    let held = take(&mut left, 3).await;
    let mut right = Worker::connect(&b.grpc, "work", 50).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased").await, 3);
    left.settle(held.iter().map(ack).collect()).await;
    let next = tokio::select! { job = left.job() => job, job = right.job() => job };
    assert!(!held.iter().any(|job| job.id == next.id));
    assert!(database.count("SELECT count(*) FROM howdah.leased").await <= 3);
    set(&a, TaskTypeSettings::default()).await;
    until(&database, "all", "SELECT count(*) = 7 FROM howdah.leased").await;
}

#[tokio::test]
async fn a_rate_grants_a_burst_and_then_a_token_at_a_time() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let rate = Some(Rate { per_second: 0.001, burst: 4 });
    set(&broker, TaskTypeSettings { rate, ..Default::default() }).await;
    ids(&broker, (0..10).map(|n| new_job("work", n.to_string())).collect()).await;
    let mut worker = Worker::connect(&broker.grpc, "work", 50).await;
    take(&mut worker, 4).await;
    let one_more = "UPDATE howdah.limit_state SET refilled = refilled - interval '1000 seconds' WHERE limit_key = '' RETURNING true";
    until(&database, "a token", one_more).await;
    take(&mut worker, 1).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased").await, 5);
}

#[tokio::test]
async fn a_key_has_its_own_rate_and_its_own_gap() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "work", 50).await;
    set(&broker, TaskTypeSettings { key_rate: Some(Rate { per_second: 0.001, burst: 2 }), ..Default::default() }).await;
    ids(&broker, (0..5).map(|_| keyed("x")).chain((0..2).map(|_| keyed("y"))).collect()).await;
    let first = take(&mut worker, 4).await;
    assert_eq!(first.iter().filter(|job| job.payload == "x").count(), 2);
    let moved = "UPDATE howdah.limit_state SET refilled = refilled - interval '1000 seconds', check_at = now()
        WHERE limit_key = 'x' RETURNING true";
    until(&database, "a token", moved).await;
    take(&mut worker, 1).await;
    set(
        &broker,
        TaskTypeSettings { key_min_gap: Some(Duration::from_secs(3600).try_into().unwrap()), ..Default::default() },
    )
    .await;
    ids(&broker, vec![keyed("z"), keyed("z")]).await;
    assert_eq!(worker.job().await.payload, "z");
    until(&database, "the look", "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.waiting WHERE limit_key = 'z'").await, 1);
    // An hour passes: the gap is counted from when the first began.
    let hour = "WITH a AS (UPDATE howdah.leased SET leased_at = leased_at - interval '1 hour' WHERE options ->> 'limit_key' = 'z'),
        b AS (UPDATE howdah.limit_state SET check_at = now(), last_start = last_start - interval '1 hour' WHERE limit_key = 'z')
        SELECT true";
    until(&database, "an hour", hour).await;
    assert_eq!(worker.job().await.payload, "z");
}

#[tokio::test]
async fn a_key_is_paused_and_resumed() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut worker = Worker::connect(&b.grpc, "work", 50).await;
    let mut types = task_types_client(&a.grpc).await;
    let pause = PauseLimitKeyRequest { task_type: "work".into(), limit_key: "x".into(), duration: None };
    types.pause_limit_key(pause).await.unwrap();
    let jobs = ids(&a, vec![keyed("x"), keyed("y")]).await;
    let job = worker.job().await;
    assert_eq!(job.id, jobs[1]);
    let list = ListLimitKeysRequest { task_type: "work".into(), ..Default::default() };
    let keys = types.list_limit_keys(list).await.unwrap().into_inner().limit_keys;
    assert_eq!(keys.len(), 1);
    assert_eq!((keys[0].limit_key.as_str(), keys[0].waiting, keys[0].paused), ("x", 1, true));
    let resume = ResumeLimitKeyRequest { task_type: "work".into(), limit_key: "x".into() };
    types.resume_limit_key(resume).await.unwrap();
    assert_eq!(worker.job().await.id, jobs[0]);
    // It counts when it has the answer of Postgres; the other may have claimed the job before.
    let admitted =
        async || [metrics(&a.http).await, metrics(&b.http).await].map(|all| all.contains("howdah_admitted_total 1\n"));
    let pace = database.connect().await;
    soon("one of them that has admitted it", async {
        while admitted().await == [false, false] {
            pace.simple_query("SELECT pg_sleep(0.02)").await.expect("pg_sleep");
        }
    })
    .await;
    assert_ne!(admitted().await, [true, true], "one of them has admitted it");
}

#[tokio::test]
async fn jobs_that_were_ready_before_a_limit_was_set_are_held_to_it() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    ids(&broker, (0..5).map(|_| keyed("x")).collect()).await;
    set(&broker, TaskTypeSettings { key_max_running: 2, ..Default::default() }).await;
    until(&database, "two", "SELECT count(*) = 2 FROM howdah.ready").await;
    set(&broker, TaskTypeSettings { key_max_running: 4, ..Default::default() }).await;
    until(&database, "four", "SELECT count(*) = 4 FROM howdah.ready").await;
}

#[tokio::test]
async fn a_broker_that_dies_frees_its_slots_with_its_leases() {
    let database = database().await;
    let b = TestBroker::start(&database).await;
    set(&b, TaskTypeSettings { key_max_running: 1, max_running: 1, ..Default::default() }).await;
    let (mut a, a_grpc) = Program::serve(&database.url, &[]).await;
    let mut left = Worker::connect(&format!("http://{a_grpc}"), "work", 5).await;
    let jobs = ids(&b, vec![NewJob { max_attempts: 1, ..keyed("x") }, keyed("x")]).await;
    assert_eq!(left.job().await.id, jobs[0]);
    a.signal(rustix::process::Signal::KILL);
    a.ended().await;
    left.vanish();
    let died =
        "UPDATE howdah.broker SET expires = now() - interval '1 s' WHERE id = (SELECT broker_id FROM howdah.leased)";
    database.connect().await.batch_execute(died).await.expect("the death of the broker");
    let mut right = Worker::connect(&b.grpc, "work", 5).await;
    assert_eq!(right.job().await.id, jobs[1]);
    assert_eq!(get(&b, jobs[0]).await.state(), JobState::Dead);
}

#[tokio::test]
async fn limits_out_of_bounds_are_refused_by_their_field() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let cases = [
        ("settings.max_running", TaskTypeSettings { max_running: 2_000_000, ..Default::default() }),
        ("settings.rate.per_second", TaskTypeSettings { rate: Some(Rate::default()), ..Default::default() }),
        (
            "settings.key_rate.per_second",
            TaskTypeSettings { key_rate: Some(Rate { per_second: f64::NAN, burst: 1 }), ..Default::default() },
        ),
        (
            "settings.rate.burst",
            TaskTypeSettings { rate: Some(Rate { per_second: 1.0, burst: 0 }), ..Default::default() },
        ),
        (
            "settings.rate.per_second",
            TaskTypeSettings { rate: Some(Rate { per_second: 0.0, burst: 1 }), ..Default::default() },
        ),
        (
            "settings.key_rate.burst",
            TaskTypeSettings { key_rate: Some(Rate { per_second: 1.0, burst: 0 }), ..Default::default() },
        ),
        ("settings.key_strict_order", TaskTypeSettings { key_strict_order: true, ..Default::default() }),
        (
            "settings.key_min_gap",
            TaskTypeSettings { key_min_gap: Some(Duration::ZERO.try_into().unwrap()), ..Default::default() },
        ),
    ];
    for (field, settings) in cases {
        let request = UpdateTaskTypeRequest { task_type: "work".into(), settings: Some(settings) };
        let error = task_types_client(&broker.grpc).await.update_task_type(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with(field), "{error}");
    }
}
