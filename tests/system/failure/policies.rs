//! Tests retry policies, whose delays are read from the table `scheduled`.

use howdah_client::RetryPolicy as Policy;
use howdah_proto::v1::{JobState, NewJob, RetryJobsRequest, RetryPolicy, RetryPolicyKind, TaskTypeSettings};

use super::{of_type, retry};
use crate::support::*;

/// Returns the retry delay of each scheduled job in seconds, ordered by id.
async fn delays(database: &TestDatabase) -> Vec<i64> {
    let sql = "SELECT round(extract(epoch FROM run_at - (failures -> -1 ->> 'failed')::timestamptz))::bigint
               FROM howdah.scheduled ORDER BY id";
    database.connect().await.query(sql, &[]).await.expect(sql).iter().map(|row| row.get(0)).collect()
}

fn with(policy: Policy) -> NewJob {
    new_job("p", "").retry_policy(policy.jitter(0.0).into_proto())
}

#[tokio::test]
async fn each_retry_policy_waits_as_it_says_and_a_job_that_backs_off_is_retried_at_once_by_type() {
    let (a, b) = TestBroker::pair().await;
    let jobs = [
        with(Policy::exponential(2 * MINUTE, 720 * HOUR)),
        with(Policy::linear(5 * MINUTE, 720 * HOUR)),
        with(Policy::linear(5 * MINUTE, 12 * MINUTE)),
        // A fixed delay of 2 h is not shortened, because the default maximum of an hour limits only growing delays.
        with(Policy::fixed(2 * HOUR)),
        with(Policy::list([secs(1), secs(10), 2 * HOUR])),
    ];
    let ids = a.enqueue_all(jobs).await;
    let mut worker = b.worker("p").await;
    for expected in [
        [2 * 60, 5 * 60, 5 * 60, 7200, 1],
        [4 * 60, 10 * 60, 10 * 60, 7200, 10],
        [8 * 60, 15 * 60, 12 * 60, 7200, 7200],
        [16 * 60, 20 * 60, 12 * 60, 7200, 7200],
    ] {
        let mut outcomes = Vec::new();
        for _ in &ids {
            outcomes.push(nack(&worker.next().await, "no"));
        }
        worker.settle(outcomes).await;
        for _ in &ids {
            worker.settled().await;
        }
        // The fifth job has a delay of only one second, so it may be ready already and have no delay.
        let delays = delays(&a.database).await;
        assert_eq!(delays[..4], expected[..4]);
        if let Some(delay) = delays.get(4) {
            assert_eq!(*delay, expected[4]);
        }
        let request = RetryJobsRequest { filter: Some(of_type("p")), ..Default::default() };
        assert!(retry(&a, request).await.retried_ids.len() >= 4);
    }
    // The retries by the test did not reset the number of attempts.
    assert_eq!(worker.next().await.attempt, 5);
}

#[tokio::test]
async fn unset_fields_of_the_retry_policy_of_a_job_come_from_its_task_type() {
    let broker = TestBroker::start().await;
    let linear = RetryPolicy { jitter: Some(0.0), ..Policy::linear(5 * MINUTE, HOUR).into_proto() };
    broker.set("p", TaskTypeSettings { retry_policy: Some(linear), ..Default::default() }).await;
    let exponential = RetryPolicy { kind: RetryPolicyKind::Exponential as i32, ..Default::default() };
    let jobs = [
        new_job("p", ""),
        new_job("p", "").retry_policy(Policy::new().initial_delay(MINUTE).into_proto()),
        new_job("p", "").retry_policy(exponential),
    ];
    let ids = broker.enqueue_all(jobs).await;
    let mut worker = broker.worker("p").window(3).await;
    for attempt in 1..=3 {
        for _ in &ids {
            let job = worker.next().await;
            assert_eq!(job.attempt, attempt);
            worker.nack(&job, "no").await;
        }
        if attempt < 3 {
            retry(&broker, RetryJobsRequest { filter: Some(of_type("p")), ..Default::default() }).await;
        }
    }
    assert_eq!(
        delays(&broker.database).await,
        [15 * 60, 3 * 60, 20 * 60],
        "linear; linear by a minute; doubled from five"
    );
}

#[tokio::test]
async fn a_policy_that_contradicts_itself_is_refused_and_nothing_is_stored() {
    let broker = TestBroker::start().await;
    let second = prost_types::Duration { seconds: 1, nanos: 0 };
    let of_kind = |kind: i32| RetryPolicy { kind, ..Default::default() };
    for (field, policy) in [
        ("kind", of_kind(5)),
        ("delays", of_kind(4)),
        ("delays", RetryPolicy { delays: vec![second; 101], ..of_kind(4) }),
        ("delays", RetryPolicy { delays: vec![second], ..of_kind(0) }),
        ("multiplier", RetryPolicy { multiplier: Some(2.0), ..of_kind(2) }),
        ("max_delay", RetryPolicy { max_delay: Some(second), ..of_kind(3) }),
        ("initial_delay", RetryPolicy { initial_delay: Some(second), delays: vec![second], ..of_kind(4) }),
    ] {
        let refused = broker.enqueue_all([new_job("p", ""), new_job("p", "").retry_policy(policy)]).refused().await;
        refused.names(&format!("jobs[1].retry_policy.{field}"));
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
}

/// SQL users may write anything to the options of a job.
#[tokio::test]
async fn invalid_options_of_a_job_or_a_task_type_stop_neither_broker_nor_job() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("mail").window(1).await;
    for junk in
        ["{\"retry\": {\"kind\": \"list\", \"delays_ms\": [null]}}", "{\"retry\": 7}", "[]", "{\"traceparent\": {}}"]
    {
        let id = broker.enqueue("mail").max_attempts(1).await;
        let job = worker.next().await;
        let sql = format!("UPDATE howdah.leased SET options = '{junk}', headers = '[1]' WHERE id = {id}");
        broker.sql(&sql).await;
        assert_eq!(broker.state(id).await, JobState::Leased, "{junk}");
        worker.nack(&job, "no").await;
        assert_eq!(broker.state(id).await, JobState::Dead, "{junk}");
    }
    let junk = "INSERT INTO howdah.task_type (name, retry_policy) VALUES ('odd', '{\"kind\": {}}')";
    broker.sql(junk).await;
    let mut odd = broker.worker("odd").window(1).await;
    broker.enqueue("odd").await;
    let job = odd.next().await;
    odd.ack(&job).await;
}
