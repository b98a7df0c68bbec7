//! Delays, read from the table.

use std::time::Duration;

use howdah_client::RetryPolicy as Policy;
use howdah_proto::v1::{
    EnqueueJobsRequest, JobState, NewJob, RetryJobsRequest, RetryPolicy, RetryPolicyKind, TaskTypeSettings,
};

use super::{enqueue, fail, failed, get, of_type, retry, set};
use crate::support::{TestBroker, TestDatabase, Worker, database, jobs_client, new_job};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The delays of every scheduled job in seconds, by id.
async fn delays(database: &TestDatabase) -> Vec<i64> {
    let sql = "SELECT round(extract(epoch FROM run_at - (failures -> -1 ->> 'failed')::timestamptz))::bigint
               FROM howdah.scheduled ORDER BY id";
    database.connect().await.query(sql, &[]).await.expect(sql).iter().map(|row| row.get(0)).collect()
}

fn with(policy: Policy) -> NewJob {
    NewJob { retry_policy: Some(policy.jitter(0.0).into_proto()), ..new_job("p", "") }
}

#[tokio::test]
async fn each_retry_policy_waits_as_it_says_and_a_job_that_backs_off_is_retried_at_once_by_type() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let ids = enqueue(
        &a,
        vec![
            with(Policy::exponential(2 * MINUTE, 720 * HOUR)),
            with(Policy::linear(5 * MINUTE, 720 * HOUR)),
            with(Policy::linear(5 * MINUTE, 12 * MINUTE)),
            // A fixed delay is not capped by the default of an hour.
            with(Policy::fixed(2 * HOUR)),
            with(Policy::list([Duration::from_secs(1), Duration::from_secs(10), 2 * HOUR])),
        ],
    )
    .await;
    let mut worker = Worker::connect(&b.grpc, "p", 10).await;
    for expected in [
        [2 * 60, 5 * 60, 5 * 60, 7200, 1],
        [4 * 60, 10 * 60, 10 * 60, 7200, 10],
        [8 * 60, 15 * 60, 12 * 60, 7200, 7200],
        [16 * 60, 20 * 60, 12 * 60, 7200, 7200],
    ] {
        let mut outcomes = Vec::new();
        for _ in &ids {
            outcomes.push(failed(&worker.job().await, "no", false));
        }
        worker.settle(outcomes).await;
        for _ in &ids {
            worker.settled().await;
        }
        // The one of a second may be on its way again.
        let delays = delays(&database).await;
        assert_eq!(delays[..4], expected[..4]);
        if let Some(delay) = delays.get(4) {
            assert_eq!(*delay, expected[4]);
        }
        let request = RetryJobsRequest { filter: Some(of_type("p")), ..Default::default() };
        assert!(retry(&a, request).await.retried_ids.len() >= 4);
    }
    // What is left of the attempts is kept.
    assert_eq!(worker.job().await.attempt, 5);
}

#[tokio::test]
async fn a_job_takes_what_it_leaves_unsaid_from_its_type_and_says_the_rest_itself() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let linear = RetryPolicy { jitter: Some(0.0), ..Policy::linear(5 * MINUTE, HOUR).into_proto() };
    set(&broker, "p", TaskTypeSettings { retry_policy: Some(linear), ..Default::default() }).await;
    let ids = enqueue(
        &broker,
        vec![
            new_job("p", ""),
            NewJob { retry_policy: Some(Policy::new().initial_delay(MINUTE).into_proto()), ..new_job("p", "") },
            NewJob {
                retry_policy: Some(RetryPolicy { kind: RetryPolicyKind::Exponential as i32, ..Default::default() }),
                ..new_job("p", "")
            },
        ],
    )
    .await;
    let mut worker = Worker::connect(&broker.grpc, "p", 3).await;
    for attempt in 1..=3 {
        for _ in &ids {
            let job = worker.job().await;
            assert_eq!(job.attempt, attempt);
            worker.settle(vec![failed(&job, "no", false)]).await;
            worker.settled().await;
        }
        if attempt < 3 {
            retry(&broker, RetryJobsRequest { filter: Some(of_type("p")), ..Default::default() }).await;
        }
    }
    assert_eq!(delays(&database).await, [15 * 60, 3 * 60, 20 * 60], "linear; linear by a minute; doubled from five");
}

#[tokio::test]
async fn a_policy_that_contradicts_itself_is_refused_and_nothing_is_stored() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let second = prost_types::Duration { seconds: 1, nanos: 0 };
    let of = |kind: i32| RetryPolicy { kind, ..Default::default() };
    for (field, policy) in [
        ("kind", of(5)),
        ("delays", of(4)),
        ("delays", RetryPolicy { delays: vec![second; 101], ..of(4) }),
        ("delays", RetryPolicy { delays: vec![second], ..of(0) }),
        ("multiplier", RetryPolicy { multiplier: Some(2.0), ..of(2) }),
        ("max_delay", RetryPolicy { max_delay: Some(second), ..of(3) }),
        ("initial_delay", RetryPolicy { initial_delay: Some(second), delays: vec![second], ..of(4) }),
    ] {
        let job = NewJob { retry_policy: Some(policy), ..new_job("p", "") };
        let request = EnqueueJobsRequest { jobs: vec![new_job("p", ""), job], ..Default::default() };
        let error = jobs.enqueue_jobs(request).await.expect_err(field);
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().starts_with(&format!("jobs[1].retry_policy.{field} ")), "{error}");
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 0);
}

/// Somebody with SQL may have put anything there. The broker goes on, and so do the jobs.
#[tokio::test]
async fn junk_instead_of_options_is_not_asked_and_harms_nobody() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "mail", 1).await;
    for junk in
        ["{\"retry\": {\"kind\": \"list\", \"delays_ms\": [null]}}", "{\"retry\": 7}", "[]", "{\"traceparent\": {}}"]
    {
        let id = enqueue(&broker, vec![NewJob { max_attempts: 1, ..new_job("mail", "") }]).await[0];
        let job = worker.job().await;
        let sql = format!("UPDATE howdah.leased SET options = '{junk}', headers = '[1]' WHERE id = {id}");
        database.connect().await.batch_execute(&sql).await.unwrap();
        assert_eq!(get(&broker, id).await.state(), JobState::Leased, "{junk}");
        fail(&mut worker, &job, "no", false).await;
        assert_eq!(get(&broker, id).await.state(), JobState::Dead, "{junk}");
    }
    let junk = "INSERT INTO howdah.task_type (name, retry_policy) VALUES ('odd', '{\"kind\": {}}')";
    database.connect().await.batch_execute(junk).await.unwrap();
    let mut odd = Worker::connect(&broker.grpc, "odd", 1).await;
    enqueue(&broker, vec![new_job("odd", "")]).await;
    let job = odd.job().await;
    odd.ack(&job).await;
}
