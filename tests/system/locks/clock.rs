//! Tests background tasks, and calls of operators, while some of the jobs are locked.

use std::time::Duration;

use howdah_proto::v1::{
    CancelJobsRequest, EndLeasesRequest, JobFilter, JobState, RetryJobsRequest, StreamEnqueueRequest, TaskTypeSettings,
};
use tonic::Code;

use super::Open;
use crate::support::*;

/// Time that calls wait for Postgres, long enough that a broker finds the holder of a lock before it answers.
const CALL: Duration = Duration::from_secs(8);

#[tokio::test]
async fn scheduled_jobs_become_ready_though_one_of_them_is_locked() {
    // No broker runs while both jobs become due and one of them is locked, because a broker could make the job ready
    // before the lock.
    let broker = TestBroker::start().await;
    let [locked, other] = [broker.enqueue("t").delay(HOUR).await, broker.enqueue("t").delay(HOUR).await];
    let database = broker.database.clone();
    broker.stop().await;
    database.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    let sql = format!("SELECT FROM howdah.scheduled WHERE id = {locked} FOR UPDATE");
    let open = Open::after(&database, "psql", &sql).await;
    let broker = TestBroker::on(&database).await;
    let mut worker = broker.worker("t").window(2).await;
    assert_eq!(worker.next().await.id, other);
    open.commit().await;
    assert_eq!(worker.next().await.id, locked);
}

#[tokio::test]
async fn scheduled_jobs_become_ready_though_the_limit_key_of_one_of_them_is_locked() {
    // No broker runs while the jobs become due and the limit key is locked, because a broker could make the jobs ready
    // before the lock.
    let broker = TestBroker::start().await;
    broker.set("t", TaskTypeSettings { key_max_running: 1, ..TaskTypeSettings::default() }).await;
    let locked = broker.enqueue("t").limit_key("locked").delay(HOUR).await;
    let other = broker.enqueue("t").limit_key("other").delay(HOUR).await;
    let plain = broker.enqueue("t").delay(HOUR).await;
    let database = broker.database.clone();
    broker.stop().await;
    database.sql("UPDATE howdah.scheduled SET run_at = now(), options = options - 'start_us'").await;
    let sql = "INSERT INTO howdah.limit_state (type_id, limit_key)
               SELECT id, 'locked' FROM howdah.task_type WHERE name = 't'";
    let open = Open::after(&database, "psql", sql).await;
    let broker = TestBroker::on(&database).await;
    let mut worker = broker.worker("t").window(3).await;
    let mut ids: Vec<i64> = worker.take(2).await.iter().map(|job| job.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [other, plain]);
    open.roll_back().await;
    assert_eq!(worker.next().await.id, locked);
}

#[tokio::test]
async fn jobs_expire_though_one_of_them_is_locked() {
    let broker = TestBroker::start().await;
    let [locked, other] = [broker.enqueue("t").expire_after(HOUR).await, broker.enqueue("t").expire_after(HOUR).await];
    broker.sql("UPDATE howdah.ready SET options = options || '{\"expire_at_us\": 1}'").await;
    let sql = format!("SELECT FROM howdah.ready WHERE id = {locked} FOR UPDATE");
    let open = Open::after(&broker.database, "psql", &sql).await;
    // Makes the check for expired jobs due now.
    broker.sql("UPDATE howdah.expiry SET expire_at = now()").await;
    broker.until_state(other, JobState::Expired).await;
    assert_eq!(broker.state(locked).await, JobState::Ready);
    open.commit().await;
    broker.until_state(locked, JobState::Expired).await;
}

#[tokio::test]
async fn jobs_of_a_broker_that_is_gone_are_rescued_though_one_of_them_and_the_key_of_another_are_locked() {
    let database = database().await;
    let quick = ["--set", "broker_lease=3s", "--set", "renew_interval=1s"];
    let mut gone = Program::serve(&database, &quick).await;
    let mut worker = gone.worker("t").window(4).await;
    gone.enqueue("t").await;
    gone.enqueue("t").key("k").max_attempts(1).await;
    gone.enqueue("t").key("other").max_attempts(1).await;
    gone.enqueue("t").await;
    let mut jobs = worker.take(4).await;
    jobs.sort_unstable_by_key(|job| job.id);
    let sql = format!(
        "SELECT FROM howdah.leased WHERE id = {} FOR UPDATE; SELECT FROM howdah.job_key WHERE key = 'k' FOR UPDATE",
        jobs[0].id
    );
    let open = Open::after(&database, "psql", &sql).await;
    gone.kill().await;
    let quick = |c: &mut howdah_core::config::Config| (c.broker_lease, c.renew_interval) = (secs(3), secs(1));
    let broker = TestBroker::on_with(&database, quick).await;
    let mut other = broker.worker("t").window(4).await;
    assert_eq!(other.next().await.id, jobs[3].id);
    broker.until_state(jobs[2].id, JobState::Dead).await;
    assert_eq!(broker.state(jobs[1].id).await, JobState::Leased);
    open.roll_back().await;
    assert_eq!(other.next().await.id, jobs[0].id);
    broker.until_state(jobs[1].id, JobState::Dead).await;
}

#[tokio::test]
async fn a_cancel_ends_the_other_jobs_and_says_which_one_is_locked() {
    let broker = TestBroker::start_with(|c| c.database_timeout = CALL).await;
    let ids = broker.enqueue_all(["t"; 4]).await;
    let sql = format!("SELECT FROM howdah.ready WHERE id = {} FOR UPDATE", ids[1]);
    let open = Open::after(&broker.database, "psql", &sql).await;
    let request = CancelJobsRequest { ids: ids.clone(), ..Default::default() };
    let status = with_timeout("an answer", broker.jobs().cancel_jobs(request)).await.expect_err("a refusal");
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let expected = format!("job {} is locked by backend {}", ids[1], open.pid);
    assert!(status.message().contains(&expected), "{status}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history WHERE outcome = 'cancelled'").await, 3);
    open.commit().await;
    assert_eq!(broker.cancel(&ids).await, [ids[1]]);
}

#[tokio::test]
async fn a_retry_makes_the_other_jobs_ready_and_says_which_one_is_locked() {
    let broker = TestBroker::start_with(|c| c.database_timeout = CALL).await;
    let ids = broker.enqueue_all((0..4).map(|_| new_job("t", "").delay(HOUR))).await;
    let sql = format!("SELECT FROM howdah.scheduled WHERE id = {} FOR UPDATE", ids[1]);
    let open = Open::after(&broker.database, "psql", &sql).await;
    let filter = Some(JobFilter { ids: ids.clone(), ..JobFilter::default() });
    let request = RetryJobsRequest { filter, ..RetryJobsRequest::default() };
    let status = with_timeout("an answer", broker.jobs().retry_jobs(request)).await.expect_err("a refusal");
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let expected = format!("job {} is locked by backend {}", ids[1], open.pid);
    assert!(status.message().contains(&expected), "{status}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 3);
    open.commit().await;
    assert_eq!(broker.retry(&ids).await, [ids[1]]);
}

#[tokio::test]
async fn a_release_takes_the_other_job_from_its_worker_and_says_which_one_is_locked() {
    let broker = TestBroker::start_with(|c| c.database_timeout = CALL).await;
    let mut worker = broker.worker("t").window(2).await;
    broker.enqueue_all(["t"; 2]).await;
    let [locked, free] = [worker.next().await.id, worker.next().await.id];
    worker.window("t", 0).await;
    let open =
        Open::after(&broker.database, "psql", &format!("SELECT FROM howdah.leased WHERE id = {locked} FOR UPDATE"))
            .await;
    let filter = Some(JobFilter { ids: vec![locked, free], ..Default::default() });
    let request = EndLeasesRequest { filter, ..Default::default() };
    let status = with_timeout("an answer", broker.jobs().end_leases(request.clone())).await.expect_err("a refusal");
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let expected = format!("job {locked} is locked by backend {}", open.pid);
    assert!(status.message().contains(&expected), "{status}");
    assert_eq!(worker.cancelled().await.id, free);
    assert_eq!(broker.state(free).await, JobState::Ready);
    open.commit().await;
    let ended = with_timeout("an answer", broker.jobs().end_leases(request)).await.expect("an answer").into_inner();
    assert_eq!(ended.ended_ids, [locked]);
    assert_eq!(worker.cancelled().await.id, locked);
}

#[tokio::test]
async fn requests_of_a_pipeline_follow_one_whose_new_task_type_is_locked() {
    let broker = TestBroker::start().await;
    let sql = "INSERT INTO howdah.task_type (name) VALUES ('theirs')";
    let open = Open::after(&broker.database, "psql", sql).await;
    let requests =
        ["theirs", "t"].map(|name| StreamEnqueueRequest { jobs: vec![new_job(name, "")], ..Default::default() });
    let answers = with_timeout("a stream", broker.jobs().stream_enqueue(futures::stream::iter(requests))).await;
    let mut answers = answers.expect("a stream").into_inner();
    broker.database.until_blocked().await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 0);
    open.roll_back().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = with_timeout("an answer", answers.message()).await.expect("a stream").expect("an answer");
        ids.push(answer.jobs[0].id);
    }
    assert!(ids[0] < ids[1], "{ids:?}");
}

#[tokio::test]
async fn a_new_task_type_in_an_open_transaction_holds_up_no_others() {
    let broker = TestBroker::start_with(|c| c.database_timeout = PATIENCE).await;
    let sql = "INSERT INTO howdah.task_type (name) VALUES ('theirs')";
    let open = Open::after(&broker.database, "psql", sql).await;
    let locked: Vec<_> = (0..10).map(|_| tokio::spawn(broker.enqueue("theirs").outcome())).collect();
    broker.database.until_blocked().await;
    for name in ["a", "b", "c"] {
        broker.enqueue(name).await;
    }
    let mut worker = broker.worker("d").await;
    broker.enqueue("d").await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert!(locked.iter().all(|call| !call.is_finished()));
    open.roll_back().await;
    for call in locked {
        with_timeout("an answer", call).await.expect("no panic");
    }
}

#[tokio::test]
async fn an_enqueue_that_waits_too_long_for_a_new_task_type_names_the_backend_with_the_lock() {
    let broker = TestBroker::start_with(|c| c.database_timeout = CALL).await;
    let sql = "INSERT INTO howdah.task_type (name) VALUES ('theirs')";
    let open = Open::after(&broker.database, "psql", sql).await;
    let refused = broker.enqueue("theirs").refused().await;
    assert_eq!(refused.code, Code::Aborted, "{refused}");
    assert!(refused.message.contains("theirs"), "{refused}");
    assert!(refused.message.contains(&format!("locked by backend {} (\"psql\")", open.pid)), "{refused}");
}
