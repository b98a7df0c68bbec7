//! Tests the option `limit_max`: the number of jobs of the limit key that may run at once when the job starts.

use howdah_proto::v1::{ExplainJobRequest, JobState, NewJob, ReasonKind, TaskTypeSettings};

use crate::support::*;

const LOOKED: &str = "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())";

fn job(limit_max: u32) -> NewJob {
    new_job("work", limit_max.to_string()).limit_key("x").with(|job| job.limit_max = limit_max)
}

/// Waits until brokers have checked the limits.
async fn checked(broker: &TestBroker) {
    broker.until("the check of the limits", LOOKED).await;
}

#[tokio::test]
async fn waiting_jobs_with_a_larger_limit_go_first() {
    let broker = TestBroker::start().await;
    let jobs = broker.enqueue_all([job(1), job(1), job(3), job(3), job(2), job(3)]).await;
    let mut worker = broker.worker("work").window(50).await;
    let running = worker.take(3).await;
    assert_eq!(running.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[2], jobs[3], jobs[5]]);
    worker.ack(&running[0]).await;
    checked(&broker).await;
    assert_eq!(broker.state(jobs[4]).await, JobState::Waiting, "two other jobs run");
    worker.ack(&running[1]).await;
    let second = worker.next().await;
    assert_eq!(second.id, jobs[4]);
    worker.ack(&running[2]).await;
    worker.ack(&second).await;
    for id in &jobs[..2] {
        let alone = worker.next().await;
        assert_eq!((alone.id, worker.buffered()), (*id, 0));
        worker.ack(&alone).await;
    }
}

#[tokio::test]
async fn a_job_with_a_larger_limit_starts_beside_one_with_a_smaller_limit() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("work").window(50).await;
    let small = broker.enqueue(job(1)).await;
    let first = worker.next().await;
    assert_eq!(first.id, small);
    let jobs = broker.enqueue_all([job(1), job(2), job(2)]).await;
    let beside = worker.next().await;
    assert_eq!(beside.id, jobs[1]);
    checked(&broker).await;
    assert_eq!((broker.state(jobs[0]).await, broker.state(jobs[2]).await), (JobState::Waiting, JobState::Waiting));
    // The first job is tried again at once, but now another job runs.
    worker.nack(&first, "no").at_once().await;
    broker.until_state(small, JobState::Waiting).await;
    worker.ack(&beside).await;
    for id in [jobs[2], jobs[0], small] {
        let alone = worker.next().await;
        assert_eq!((alone.id, worker.buffered()), (id, 0));
        worker.ack(&alone).await;
    }
}

#[tokio::test]
async fn the_limit_of_a_job_counts_instead_of_the_limits_of_its_key_and_type() {
    let broker = TestBroker::start().await;
    broker.set("work", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    broker.limit_key("work", "x", 2).await;
    let jobs = broker.enqueue_all([job(0), job(0), job(1), job(3), job(0)]).await;
    let mut worker = broker.worker("work").window(50).await;
    let running = worker.take(2).await;
    assert_eq!(running.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs[0], jobs[3]]);
    let third = broker.enqueue(job(3)).await;
    assert_eq!(worker.next().await.id, third);
    checked(&broker).await;
    assert_eq!(worker.buffered(), 0);
    let request = ExplainJobRequest { id: jobs[2] };
    let reasons = broker.jobs().explain_job(request).await.expect("reasons").into_inner();
    let full = &reasons.reasons[0];
    assert_eq!((full.kind(), full.limit, full.used), (ReasonKind::LimitKeyFull, 1.0, 3));
    assert_eq!(reasons.position.map(|at| at.jobs_before), Some(2), "the jobs with the limit of the key go first");
    let full = broker.jobs().explain_job(ExplainJobRequest { id: jobs[4] }).await.expect("reasons").into_inner();
    assert_eq!((full.reasons[0].limit, full.position.map(|at| at.jobs_before)), (2.0, Some(1)));
    assert_eq!(broker.job(jobs[2]).await.limit_max, 1);
}

#[tokio::test]
async fn in_strict_order_a_job_that_is_tried_again_goes_before_jobs_with_a_larger_limit() {
    let broker = TestBroker::start().await;
    let settings = TaskTypeSettings { key_max_running: 1, key_strict_order: true, ..Default::default() };
    broker.set("work", settings).await;
    let mut worker = broker.worker("work").window(50).await;
    let small = broker.enqueue(job(1)).await;
    let first = worker.next().await;
    let large = broker.enqueue(job(2)).await;
    let beside = worker.next().await;
    assert_eq!(beside.id, large);
    let later = broker.enqueue(job(2)).await;
    worker.nack(&first, "later").retry_after(HOUR).await;
    worker.ack(&beside).await;
    // While the retry is scheduled, it keeps its slot, and one more job may run beside it.
    let beside = worker.next().await;
    assert_eq!(beside.id, later);
    let last = broker.enqueue(job(2)).await;
    broker.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    broker.until_state(small, JobState::Waiting).await;
    checked(&broker).await;
    assert_eq!(broker.state(last).await, JobState::Waiting, "the retry waits for the running job, and goes first");
    worker.ack(&beside).await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (small, 2));
    worker.ack(&again).await;
    assert_eq!(worker.next().await.id, last);
}

#[tokio::test]
async fn many_jobs_with_different_limits_all_run_and_none_starts_beside_too_many() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("work").window(50).await;
    let jobs: Vec<NewJob> = (0..40).map(|number| job(number * 7 % 11 % 4 + 1)).collect();
    let exceeded = "SELECT count(*) FROM howdah.leased j WHERE (j.options -> 'limit_max')::integer
        < (SELECT count(*) FROM howdah.leased o WHERE o.leased_at <= j.leased_at)";
    broker.enqueue_all(jobs[..20].to_vec()).await;
    let mut running = Vec::new();
    for number in 0..40 {
        if let Some(job) = jobs.get(20 + number) {
            broker.enqueue(job.clone()).await;
        }
        while running.is_empty() || worker.buffered() > 0 {
            running.push(worker.next().await);
        }
        assert_eq!(broker.count(exceeded).await, 0);
        let ended = running.swap_remove(number * 5 % running.len());
        worker.ack(&ended).await;
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history").await, 40);
}

#[tokio::test]
async fn a_limit_of_a_job_needs_a_limit_key_and_has_bounds() {
    let broker = TestBroker::start().await;
    let alone = new_job("work", "").with(|job| job.limit_max = 1);
    broker.enqueue(alone).refused().await.names("jobs[0].limit_max");
    broker.enqueue(job(1_000_001)).refused().await.names("jobs[0].limit_max");
    let client = broker.database.connect().await;
    for (options, message) in [
        ("limit_max => 1", "limit_max is set without limit_key; set that too"),
        ("limit_key => 'x', limit_max => 1000001", "limit_max is 1000001; 1 to 1000000 is allowed"),
    ] {
        let error =
            client.query(&format!("SELECT howdah.enqueue('work', 'p', {options})"), &[]).await.expect_err(options);
        assert_eq!(error.as_db_error().map(|error| error.message()), Some(message));
    }
    client.query("SELECT howdah.enqueue('work', 'p', limit_key => 'x', limit_max => 2)", &[]).await.expect("a job");
    let id = broker.count("SELECT id FROM howdah.job").await;
    broker.until_state(id, JobState::Ready).await;
    assert_eq!(broker.job(id).await.limit_max, 2);
    assert_eq!(broker.count("SELECT limit_max::bigint FROM howdah.job").await, 2);
}
