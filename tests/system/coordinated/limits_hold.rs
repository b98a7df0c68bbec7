//! Tests that limits hold through every transition of a job, and while the limits change.

use howdah_proto::v1::{JobState, LeasedJob, NewJob, Outcome, Rate, SettleStatus, TaskTypeSettings};

use crate::support::*;

const LOOKED: &str = "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())";

/// Creates a job with a limit key. After a failure or a timeout, the job is retried at once.
fn keyed(key: &str) -> NewJob {
    new_job("work", key).limit_key(key).retry_after_each(secs(0))
}

/// Makes scheduled jobs due and waits until brokers have checked the limits.
async fn promote(database: &TestDatabase) {
    database.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    database.until("no scheduled jobs", "SELECT NOT EXISTS (SELECT FROM howdah.scheduled)").await;
    database.until("the check of the limits", LOOKED).await;
}

/// Simulates for the limits that an hour has passed: moves start times of jobs and refill times of rates back.
async fn an_hour_passes(database: &TestDatabase) {
    database
        .sql(
            "UPDATE howdah.leased SET leased_at = leased_at - interval '1 hour';
         UPDATE howdah.limit_state SET check_at = now(), gap_from = gap_from - interval '1 hour',
             refilled = refilled - interval '1 hour' WHERE limit_key <> ''",
        )
        .await;
}

#[tokio::test]
async fn a_job_that_is_to_be_tried_again_at_once_waits_while_its_key_is_paused() {
    let (a, b) = TestBroker::pair().await;
    let mut worker = b.worker("work").window(50).await;
    let nacked: fn(&LeasedJob) -> Outcome = |job| nack(job, "no").at_once();
    for again in [nacked, release] {
        let id = a.enqueue(keyed("x")).await;
        let job = worker.next().await;
        a.pause_key("work", "x").await;
        worker.settle(vec![again(&job)]).await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
        assert_eq!(a.state(id).await, JobState::Waiting);
        a.resume_key("work", "x").await;
        let job = worker.next().await;
        assert_eq!(job.id, id);
        worker.ack(&job).await;
    }
}

/// Ends attempts in each way that makes a job ready again at once: nack, release, timeout, a lost broker. Each time the limit
/// must keep the job waiting.
async fn come_back_at_once(database: &TestDatabase, settings: TaskTypeSettings) {
    let b = TestBroker::on(database).await;
    b.set("work", settings).await;
    let mut a = Program::serve(database, &[]).await;
    let mut worker = a.worker("work").window(50).await;
    for key in ["nacked", "released", "timed out"] {
        let id = b.enqueue(keyed(key)).await;
        let job = worker.next().await;
        // Moves the recorded start of the last job back, so that only the start of this attempt counts for the minimum
        // gap.
        database.sql("UPDATE howdah.limit_state SET gap_from = gap_from - interval '2 hours'").await;
        match key {
            "nacked" => worker.nack(&job, "no").at_once().await,
            "released" => worker.release(&job).await,
            _ => {
                database.sql("UPDATE howdah.leased SET deadline = now() - interval '1 s'").await;
                worker.cancelled().await;
            }
        }
        b.until_state(id, JobState::Waiting).await;
        database.until("the check of the limits", LOOKED).await;
        assert_eq!(b.state(id).await, JobState::Waiting, "{key}");
        database.sql("DELETE FROM howdah.waiting").await;
    }
    let id = b.enqueue(keyed("lost")).await;
    assert_eq!(worker.next().await.id, id);
    a.kill().await;
    worker.vanish();
    let died =
        "UPDATE howdah.broker SET expires = now() - interval '1 s' WHERE id = (SELECT broker_id FROM howdah.leased)";
    database.sql(died).await;
    b.until_state(id, JobState::Waiting).await;
    database.until("the check of the limits", LOOKED).await;
    assert_eq!(b.state(id).await, JobState::Waiting);
    let mut worker = b.worker("work").window(50).await;
    an_hour_passes(database).await;
    let job = worker.next().await;
    assert_eq!((job.id, job.attempt), (id, 2));
}

#[tokio::test]
async fn a_job_whose_attempt_ended_without_a_delay_waits_for_the_gap_of_its_limit_key() {
    let database = database().await;
    come_back_at_once(&database, TaskTypeSettings { key_min_gap: Some(wire(HOUR)), ..Default::default() }).await;
}

#[tokio::test]
async fn a_job_whose_attempt_ended_without_a_delay_waits_for_the_gap_from_that_end() {
    let database = database().await;
    let settings = TaskTypeSettings { key_min_gap: Some(wire(HOUR)), key_gap_from_end: true, ..Default::default() };
    come_back_at_once(&database, settings).await;
}

#[tokio::test]
async fn a_job_whose_attempt_ended_without_a_delay_waits_for_the_rate_of_its_limit_key() {
    let database = database().await;
    let key_rate = Some(Rate { per_second: 0.001, burst: 1 });
    come_back_at_once(&database, TaskTypeSettings { key_rate, ..Default::default() }).await;
}

#[tokio::test]
async fn a_retry_in_strict_order_waits_for_the_gap_and_is_still_the_first() {
    let broker = TestBroker::start().await;
    let settings = TaskTypeSettings {
        key_max_running: 1,
        key_strict_order: true,
        key_min_gap: Some(wire(HOUR)),
        ..Default::default()
    };
    broker.set("work", settings).await;
    let mut worker = broker.worker("work").window(50).await;
    let jobs = broker.enqueue_all([keyed("x"), keyed("x")]).await;
    let first = worker.next().await;
    worker.nack(&first, "later").retry_after(HOUR).await;
    promote(&broker.database).await;
    assert_eq!(broker.state(jobs[0]).await, JobState::Waiting);
    an_hour_passes(&broker.database).await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt, worker.buffered()), (jobs[0], 2, 0));
}

#[tokio::test]
async fn a_lowered_key_limit_holds_for_jobs_that_are_retried_without_a_delay() {
    let (a, b) = TestBroker::pair().await;
    a.set("work", TaskTypeSettings { key_max_running: 2, ..Default::default() }).await;
    let mut worker = b.worker("work").window(50).await;
    let jobs = a.enqueue_all([keyed("x"), keyed("x")]).await;
    let (first, second) = (worker.next().await, worker.next().await);
    a.set("work", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    worker.nack(&first, "no").at_once().await;
    assert_eq!(a.state(jobs[0]).await, JobState::Waiting);
    worker.ack(&second).await;
    assert_eq!(worker.next().await.id, jobs[0]);
}

#[tokio::test]
async fn strict_order_holds_over_a_pause() {
    let (a, b) = TestBroker::pair().await;
    a.set("work", TaskTypeSettings { key_max_running: 1, key_strict_order: true, ..Default::default() }).await;
    let jobs = b.enqueue_all((0..3).map(|_| keyed("x"))).await;
    let mut worker = b.worker("work").window(50).await;
    let first = worker.next().await;
    worker.nack(&first, "later").retry_after(HOUR).await;
    a.pause_key("work", "x").await;
    promote(&a.database).await;
    a.resume_key("work", "x").await;
    for id in jobs {
        let job = worker.next().await;
        assert_eq!((job.id, worker.buffered()), (id, 0));
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn strict_order_holds_over_new_limits() {
    let (a, b) = TestBroker::pair().await;
    let strict = TaskTypeSettings { key_max_running: 1, key_strict_order: true, ..Default::default() };
    a.set("work", TaskTypeSettings { key_max_running: 2, ..strict.clone() }).await;
    let jobs = b.enqueue_all((0..4).map(|_| keyed("x"))).await;
    let mut worker = b.worker("work").window(2).await;
    let (first, second) = (worker.next().await, worker.next().await);
    // Closes the window before the nacks, so that the worker gets no more jobs before the broker notices that the worker has
    // left.
    worker.window("work", 0).await;
    worker.nack(&first, "later").retry_after(HOUR).await;
    worker.nack(&second, "later").retry_after(HOUR).await;
    drop(worker);
    // The old limit of two makes both jobs ready. The new limit then has room for only one of the two.
    promote(&a.database).await;
    a.set("work", strict).await;
    a.until("one ready job", "SELECT count(*) = 1 FROM howdah.ready").await;
    let mut worker = b.worker("work").window(2).await;
    for id in jobs {
        let job = worker.next().await;
        assert_eq!((job.id, worker.buffered()), (id, 0));
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn a_new_limit_touches_only_keys_at_which_jobs_wait() {
    let (a, b) = TestBroker::pair().await;
    a.pause_key("work", "x").await;
    let waits = a.enqueue(keyed("x")).await;
    a.sql(
        "INSERT INTO howdah.limit_state (type_id, limit_key, gap_from)
         SELECT t.id, 'idle ' || n, now() FROM howdah.task_type t, generate_series(1, 20000) n",
    )
    .await;
    b.set("work", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let due = "SELECT count(*) FROM howdah.limit_state WHERE check_at IS NOT NULL AND limit_key LIKE 'idle %'";
    assert_eq!(a.count(due).await, 0);
    let mut worker = b.worker("other").window(1).await;
    let free = a.enqueue(keyed("y").with(|job| job.task_type = "other".into())).await;
    assert_eq!(worker.next().await.id, free);
    assert_eq!(a.state(waits).await, JobState::Waiting);
}

#[tokio::test]
async fn ready_jobs_are_moved_behind_a_new_limit_in_batches_that_any_broker_continues() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let jobs = broker.enqueue_all((0..2_500).map(|_| keyed("x"))).await;
    let others = broker.enqueue_all([keyed("a"), keyed("y"), keyed("y")]).await;
    broker.stop().await;
    database
        .sql(
            "BEGIN; UPDATE howdah.task_type SET key_max_running = 1;
         SELECT howdah.begin_limit_change(id) FROM howdah.task_type; COMMIT",
        )
        .await;
    let waiting = database.count("SELECT count(*) FROM howdah.waiting").await;
    assert!((1..2_000).contains(&waiting), "{waiting} jobs were moved in one batch");
    // The broker has died while it applied the new limit, so the change is half done. Other brokers must complete it.
    let (a, b) = (TestBroker::on(&database).await, TestBroker::on(&database).await);
    database.until("three ready jobs", "SELECT count(*) = 3 FROM howdah.ready").await;
    database.until("the other jobs at their limit key", "SELECT count(*) = 2500 FROM howdah.waiting").await;
    assert_eq!(a.state(others[0]).await, JobState::Ready);
    for id in [jobs[0], others[1]] {
        assert_eq!(b.state(id).await, JobState::Ready, "the first job of each limit key is ready");
    }
}

#[tokio::test]
async fn leases_of_brokers_that_did_not_know_of_a_limit_yet_are_counted() {
    let (a, b) = TestBroker::pair().await;
    let mut left = a.worker("work").window(3).await;
    a.enqueue_all((0..10).map(|_| new_job("work", ""))).await;
    for _ in 0..3 {
        left.next().await;
    }
    b.set("work", TaskTypeSettings { max_running: 3, ..Default::default() }).await;
    // Simulates claims by a broker that has not read the new limit. For two seconds after the change, brokers do not search for
    // leases of such claims.
    a.sql(
        "BEGIN; SELECT howdah.begin_limit_change(id) FROM howdah.task_type;
         UPDATE howdah.leased SET limited = NULL; COMMIT",
    )
    .await;
    let _right = b.worker("work").window(50).await;
    let claimed = "SELECT EXISTS (SELECT FROM howdah.limit_state WHERE limit_key = '')";
    a.until("a claim that found the limit", claimed).await;
    assert_eq!(a.count("SELECT count(*) FROM howdah.leased").await, 3);
    // Makes the change of the limit an hour old. By then all brokers have read the limit, and older claims have
    // committed.
    let later = "UPDATE howdah.limit_change SET changed = changed - interval '1 hour', due_at = now()";
    for _ in 0..2 {
        a.sql(later).await;
        a.until(
            "no lease without the mark of its limit",
            "SELECT NOT EXISTS (SELECT FROM howdah.leased WHERE limited IS NULL)",
        )
        .await;
    }
    a.until("the end of the limit change", "SELECT NOT EXISTS (SELECT FROM howdah.limit_change)").await;
    assert_eq!(a.count("SELECT count(*) FROM howdah.leased WHERE limited").await, 3);
}
