//! Limits hold whatever becomes of a job on its way, and while they are being changed.

use std::time::Duration;

use howdah_proto::v1::{
    JobState, LeasedJob, NewJob, Outcome, PauseLimitKeyRequest, Rate, Release, ResumeLimitKeyRequest, RetryPolicy,
    RetryPolicyKind, TaskTypeSettings, UpdateTaskTypeRequest, Window, outcome, work_request, work_response,
};

use super::{get, ids, until_state};
use crate::support::{
    Program, TestBroker, TestDatabase, Worker, ack, database, nack, new_job, task_types_client, until,
};

const LOOKED: &str = "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())";

fn hour() -> Option<prost_types::Duration> {
    Some(Duration::from_secs(3600).try_into().unwrap())
}

/// A job that is tried again at once when its time is over.
fn keyed(key: &str) -> NewJob {
    let retry_policy = Some(RetryPolicy {
        initial_delay: Some(Duration::ZERO.try_into().unwrap()),
        kind: RetryPolicyKind::Fixed as i32,
        ..RetryPolicy::default()
    });
    NewJob { limit_key: key.into(), retry_policy, ..new_job("work", key.to_owned()) }
}

async fn set(broker: &TestBroker, settings: TaskTypeSettings) {
    let request = UpdateTaskTypeRequest { task_type: "work".into(), settings: Some(settings) };
    task_types_client(&broker.grpc).await.update_task_type(request).await.expect("settings");
}

async fn pause(broker: &TestBroker, key: &str) {
    let request = PauseLimitKeyRequest { task_type: "work".into(), limit_key: key.into(), duration: None };
    task_types_client(&broker.grpc).await.pause_limit_key(request).await.expect("pause");
}

async fn resume(broker: &TestBroker, key: &str) {
    let request = ResumeLimitKeyRequest { task_type: "work".into(), limit_key: key.into() };
    task_types_client(&broker.grpc).await.resume_limit_key(request).await.expect("resume");
}

async fn sql(database: &TestDatabase, sql: &str) {
    database.connect().await.batch_execute(sql).await.expect(sql);
}

fn release(job: &LeasedJob) -> Outcome {
    Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Release(Release {})) }
}

fn nack_for_an_hour(job: &LeasedJob) -> Outcome {
    let mut later = nack(job, "later");
    if let Some(outcome::Outcome::Nack(nack)) = &mut later.outcome {
        nack.retry_after = hour();
    }
    later
}

async fn settle(worker: &mut Worker, outcome: Outcome) {
    worker.settle(vec![outcome]).await;
    assert_eq!(worker.settled().await.status(), howdah_proto::v1::SettleStatus::Ok);
}

/// What was scheduled is due, and somebody has looked at it.
async fn promote(database: &TestDatabase) {
    sql(database, "UPDATE howdah.scheduled SET run_at = now()").await;
    until(database, "the time", "SELECT NOT EXISTS (SELECT FROM howdah.scheduled)").await;
    until(database, "the look", LOOKED).await;
}

/// An hour passes for starts and rates.
async fn an_hour_passes(database: &TestDatabase) {
    sql(
        database,
        "UPDATE howdah.leased SET leased_at = leased_at - interval '1 hour';
         UPDATE howdah.limit_state SET check_at = now(), last_start = last_start - interval '1 hour',
             refilled = refilled - interval '1 hour' WHERE limit_key <> ''",
    )
    .await;
}

#[tokio::test]
async fn a_job_that_is_to_be_tried_again_at_once_waits_while_its_key_is_paused() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut worker = Worker::connect(&b.grpc, "work", 50).await;
    for again in [nack as fn(&LeasedJob, &str) -> Outcome, |job, _| release(job)] {
        let id = ids(&a, vec![keyed("x")]).await[0];
        let job = worker.job().await;
        pause(&a, "x").await;
        settle(&mut worker, again(&job, "no")).await;
        assert_eq!(get(&a, id).await.state(), JobState::Waiting);
        resume(&a, "x").await;
        let job = worker.job().await;
        assert_eq!(job.id, id);
        worker.ack(&job).await;
    }
}

/// Each way in which a job is there again at once.
async fn come_back_at_once(database: &TestDatabase, settings: TaskTypeSettings) {
    let b = TestBroker::start(database).await;
    set(&b, settings).await;
    let (mut a, a_grpc) = Program::serve(&database.url, &[]).await;
    let mut worker = Worker::connect(&format!("http://{a_grpc}"), "work", 50).await;
    for key in ["nacked", "released", "timed out"] {
        let id = ids(&b, vec![keyed(key)]).await[0];
        let job = worker.job().await;
        // It was let in long ago, and has begun now.
        sql(database, "UPDATE howdah.limit_state SET last_start = last_start - interval '2 hours'").await;
        match key {
            "nacked" => settle(&mut worker, nack(&job, "no")).await,
            "released" => settle(&mut worker, release(&job)).await,
            _ => {
                sql(database, "UPDATE howdah.leased SET deadline = now() - interval '1 s'").await;
                let message = worker.message().await.unwrap();
                assert!(matches!(message, Some(work_response::Message::Cancel(_))), "{message:?}");
            }
        }
        until_state(database, id, JobState::Waiting).await;
        until(database, "the look", LOOKED).await;
        assert_eq!(get(&b, id).await.state(), JobState::Waiting, "{key}");
        sql(database, "DELETE FROM howdah.waiting").await;
    }
    let id = ids(&b, vec![keyed("lost")]).await[0];
    assert_eq!(worker.job().await.id, id);
    a.signal(rustix::process::Signal::KILL);
    a.ended().await;
    worker.vanish();
    let died =
        "UPDATE howdah.broker SET expires = now() - interval '1 s' WHERE id = (SELECT broker_id FROM howdah.leased)";
    sql(database, died).await;
    until_state(database, id, JobState::Waiting).await;
    until(database, "the look", LOOKED).await;
    assert_eq!(get(&b, id).await.state(), JobState::Waiting);
    let mut worker = Worker::connect(&b.grpc, "work", 50).await;
    an_hour_passes(database).await;
    let job = worker.job().await;
    assert_eq!((job.id, job.attempt), (id, 2));
}

#[tokio::test]
async fn a_job_that_is_there_again_at_once_waits_for_the_gap_of_its_key() {
    let database = database().await;
    come_back_at_once(&database, TaskTypeSettings { key_min_gap: hour(), ..Default::default() }).await;
}

#[tokio::test]
async fn a_job_that_is_there_again_at_once_waits_for_the_rate_of_its_key() {
    let database = database().await;
    let key_rate = Some(Rate { per_second: 0.001, burst: 1 });
    come_back_at_once(&database, TaskTypeSettings { key_rate, ..Default::default() }).await;
}

#[tokio::test]
async fn a_retry_in_strict_order_waits_for_the_gap_and_is_still_the_first() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let settings =
        TaskTypeSettings { key_max_running: 1, key_strict_order: true, key_min_gap: hour(), ..Default::default() };
    set(&broker, settings).await;
    let mut worker = Worker::connect(&broker.grpc, "work", 50).await;
    let jobs = ids(&broker, vec![keyed("x"), keyed("x")]).await;
    let first = worker.job().await;
    settle(&mut worker, nack_for_an_hour(&first)).await;
    promote(&database).await;
    assert_eq!(get(&broker, jobs[0]).await.state(), JobState::Waiting);
    an_hour_passes(&database).await;
    let again = worker.job().await;
    assert_eq!((again.id, again.attempt, worker.buffered()), (jobs[0], 2, 0));
}

#[tokio::test]
async fn a_key_limit_that_was_lowered_holds_for_jobs_that_are_there_again_at_once() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set(&a, TaskTypeSettings { key_max_running: 2, ..Default::default() }).await;
    let mut worker = Worker::connect(&b.grpc, "work", 50).await;
    let jobs = ids(&a, vec![keyed("x"), keyed("x")]).await;
    let (first, second) = (worker.job().await, worker.job().await);
    set(&a, TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    settle(&mut worker, nack(&first, "no")).await;
    assert_eq!(get(&a, jobs[0]).await.state(), JobState::Waiting);
    settle(&mut worker, ack(&second)).await;
    assert_eq!(worker.job().await.id, jobs[0]);
}

#[tokio::test]
async fn strict_order_holds_over_a_pause() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set(&a, TaskTypeSettings { key_max_running: 1, key_strict_order: true, ..Default::default() }).await;
    let jobs = ids(&b, (0..3).map(|_| keyed("x")).collect()).await;
    let mut worker = Worker::connect(&b.grpc, "work", 50).await;
    let first = worker.job().await;
    settle(&mut worker, nack_for_an_hour(&first)).await;
    pause(&a, "x").await;
    promote(&database).await;
    resume(&a, "x").await;
    for id in jobs {
        let job = worker.job().await;
        assert_eq!((job.id, worker.buffered()), (id, 0));
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn strict_order_holds_over_new_limits() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let strict = TaskTypeSettings { key_max_running: 1, key_strict_order: true, ..Default::default() };
    set(&a, TaskTypeSettings { key_max_running: 2, ..strict.clone() }).await;
    let jobs = ids(&b, (0..4).map(|_| keyed("x")).collect()).await;
    let mut worker = Worker::connect(&b.grpc, "work", 2).await;
    let (first, second) = (worker.job().await, worker.job().await);
    // It wants no more: its broker may see late that it is gone.
    let closed = Window { task_type: "work".into(), jobs: 0, bytes: 0 };
    worker.send(work_request::Message::Window(closed)).await;
    worker.settle(vec![nack_for_an_hour(&first), nack_for_an_hour(&second)]).await;
    worker.settled().await;
    worker.settled().await;
    drop(worker);
    // Both are ready; then there is room for one.
    promote(&database).await;
    set(&a, strict).await;
    until(&database, "one", "SELECT count(*) = 1 FROM howdah.ready").await;
    let mut worker = Worker::connect(&b.grpc, "work", 2).await;
    for id in jobs {
        let job = worker.job().await;
        assert_eq!((job.id, worker.buffered()), (id, 0));
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn a_new_limit_touches_only_keys_at_which_jobs_wait() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    pause(&a, "x").await;
    let waits = ids(&a, vec![keyed("x")]).await[0];
    sql(
        &database,
        "INSERT INTO howdah.limit_state (type_id, limit_key, last_start)
         SELECT t.id, 'idle ' || n, now() FROM howdah.task_type t, generate_series(1, 20000) n",
    )
    .await;
    set(&b, TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let due = "SELECT count(*) FROM howdah.limit_state WHERE check_at IS NOT NULL AND limit_key LIKE 'idle %'";
    assert_eq!(database.count(due).await, 0);
    let mut worker = Worker::connect(&b.grpc, "other", 1).await;
    let free = ids(&a, vec![NewJob { task_type: "other".into(), ..keyed("y") }]).await[0];
    assert_eq!(worker.job().await.id, free);
    assert_eq!(get(&a, waits).await.state(), JobState::Waiting);
}

#[tokio::test]
async fn ready_jobs_are_moved_behind_a_new_limit_in_batches_by_whoever_is_there() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let jobs = ids(&broker, (0..2_500).map(|_| keyed("x")).collect()).await;
    let others = ids(&broker, vec![keyed("a"), keyed("y"), keyed("y")]).await;
    broker.stop().await;
    sql(
        &database,
        "BEGIN; UPDATE howdah.task_type SET key_max_running = 1;
         SELECT howdah.begin_limit_change(id) FROM howdah.task_type; COMMIT",
    )
    .await;
    let waiting = database.count("SELECT count(*) FROM howdah.waiting").await;
    assert!((1..2_000).contains(&waiting), "{waiting} in one batch");
    // Its broker has died on the way.
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    until(&database, "three", "SELECT count(*) = 3 FROM howdah.ready").await;
    until(&database, "the rest", "SELECT count(*) = 2500 FROM howdah.waiting").await;
    assert_eq!(get(&a, others[0]).await.state(), JobState::Ready);
    for id in [jobs[0], others[1]] {
        assert_eq!(get(&b, id).await.state(), JobState::Ready, "each key begins with its first");
    }
}

#[tokio::test]
async fn leases_of_brokers_that_did_not_know_of_a_limit_yet_are_counted() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut left = Worker::connect(&a.grpc, "work", 3).await;
    ids(&a, (0..10).map(|_| new_job("work", "")).collect()).await;
    for _ in 0..3 {
        left.job().await;
    }
    set(&b, TaskTypeSettings { max_running: 3, ..Default::default() }).await;
    // As if they had been claimed now, by a broker that has not read it. The limit is as new: until two seconds after
    // a change nobody has looked for such.
    sql(
        &database,
        "BEGIN; SELECT howdah.begin_limit_change(id) FROM howdah.task_type;
         UPDATE howdah.leased SET limited = NULL; COMMIT",
    )
    .await;
    let _right = Worker::connect(&b.grpc, "work", 50).await;
    let asked = "SELECT EXISTS (SELECT FROM howdah.limit_state WHERE limit_key = '')";
    until(&database, "a claim", asked).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased").await, 3);
    // All brokers have read it, and everything has ended that was under way.
    let later = "UPDATE howdah.limit_change SET changed = changed - interval '1 hour', due_at = now()";
    for _ in 0..2 {
        sql(&database, later).await;
        until(&database, "the mark", "SELECT NOT EXISTS (SELECT FROM howdah.leased WHERE limited IS NULL)").await;
    }
    until(&database, "the end of it", "SELECT NOT EXISTS (SELECT FROM howdah.limit_change)").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.leased WHERE limited").await, 3);
}
