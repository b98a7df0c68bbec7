//! Tests settling jobs that an open transaction has locked.

use howdah_proto::v1::{CancelReason, JobState, LeasedJob, SettleStatus};

use super::Open;
use crate::support::*;

/// Connects a worker that takes `jobs` jobs, and opens a transaction that has changed the first of them.
async fn start(jobs: usize) -> (TestBroker, Worker, Vec<LeasedJob>, Open) {
    start_with(jobs, |_| {}).await
}

async fn start_with(
    jobs: usize,
    change: impl FnOnce(&mut howdah_core::config::Config),
) -> (TestBroker, Worker, Vec<LeasedJob>, Open) {
    let broker = TestBroker::start_with(change).await;
    broker.enqueue_all(vec!["t"; jobs]).await;
    let mut worker = broker.worker("t").window(jobs as i32).await;
    let jobs = worker.take(jobs).await;
    let sql = format!("SELECT howdah.reprioritize({}, 5)", jobs[0].id);
    let open = Open::after(&broker.database, "psql", &sql).await;
    (broker, worker, jobs, open)
}

#[tokio::test]
async fn an_ack_of_a_locked_job_holds_up_no_other_outcome() {
    let (_broker, mut worker, jobs, open) = start(5).await;
    worker.settle(vec![ack(&jobs[0]), ack(&jobs[1]), nack(&jobs[2], "no")]).await;
    for job in &jobs[1..3] {
        let settled = worker.settled().await;
        assert_eq!((settled.id, settled.status()), (job.id, SettleStatus::Ok));
    }
    worker.ack(&jobs[3]).await;
    worker.snooze(&jobs[4], HOUR).await;
    open.commit().await;
    let settled = worker.settled().await;
    assert_eq!((settled.id, settled.status()), (jobs[0].id, SettleStatus::Ok));
}

#[tokio::test]
async fn every_outcome_of_a_locked_job_is_written_when_the_lock_goes() {
    for (outcome, state) in [
        (ack as fn(&LeasedJob) -> howdah_proto::v1::Outcome, JobState::Succeeded),
        (|job| nack(job, "no").retry_after(HOUR), JobState::Scheduled),
        (|job| snooze(job, HOUR), JobState::Scheduled),
    ] {
        let (broker, mut worker, jobs, open) = start(2).await;
        worker.settle(vec![outcome(&jobs[0])]).await;
        broker.database.until_blocked().await;
        worker.ack(&jobs[1]).await;
        assert_eq!(broker.state(jobs[0].id).await, JobState::Leased);
        open.roll_back().await;
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
        assert_eq!(broker.state(jobs[0].id).await, state);
    }
}

#[tokio::test]
async fn an_ack_is_ok_when_the_open_transaction_has_written_the_same() {
    let (broker, mut worker, jobs, open) = start(1).await;
    open.roll_back().await;
    let sql = format!("SELECT howdah.complete({}, {})", jobs[0].id, jobs[0].token);
    let open = Open::after(&broker.database, "psql", &sql).await;
    worker.settle(vec![ack(&jobs[0])]).await;
    broker.database.until_blocked().await;
    open.commit().await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
}

#[tokio::test]
async fn an_outcome_that_stays_locked_is_unavailable_and_may_be_sent_again() {
    let (_broker, mut worker, jobs, open) = start_with(1, |c| c.database_timeout = secs(8)).await;
    assert_eq!(worker.ack(&jobs[0]).status().await, SettleStatus::Unavailable);
    open.commit().await;
    worker.ack(&jobs[0]).await;
}

#[tokio::test]
async fn many_locked_jobs_hold_up_no_others() {
    const JOBS: usize = 300;
    let broker = TestBroker::start_with(|c| c.database_timeout = PATIENCE).await;
    broker.enqueue_all(vec!["t"; JOBS]).await;
    let mut worker = broker.worker("t").window(JOBS as i32).await;
    let jobs = worker.take(JOBS).await;
    let ids: Vec<String> = jobs.iter().step_by(2).map(|job| job.id.to_string()).collect();
    let sql = format!("SELECT count(howdah.reprioritize(id, 5)) FROM unnest('{{{}}}'::bigint[]) id", ids.join(","));
    let open = Open::after(&broker.database, "psql", &sql).await;
    for job in &jobs {
        worker.settle(vec![ack(job)]).await;
    }
    for _ in 0..JOBS / 2 {
        let settled = worker.settled().await;
        let at = jobs.iter().position(|job| job.id == settled.id).expect("one of them");
        assert_eq!((at % 2, settled.status()), (1, SettleStatus::Ok));
    }
    open.commit().await;
    for _ in 0..JOBS / 2 {
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
}

#[tokio::test]
async fn a_locked_key_of_a_job_holds_up_only_its_own_outcome() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").key("k").await;
    broker.enqueue("t").await;
    let mut worker = broker.worker("t").window(2).await;
    let jobs = worker.take(2).await;
    let open = Open::after(&broker.database, "psql", "SELECT FROM howdah.job_key FOR UPDATE").await;
    worker.settle(vec![ack(&jobs[0]), ack(&jobs[1])]).await;
    let settled = worker.settled().await;
    assert_eq!((settled.id, settled.status()), (jobs[1].id, SettleStatus::Ok));
    open.commit().await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_key").await, 0);
}

#[tokio::test]
async fn extensions_and_reports_of_other_jobs_go_on() {
    let (_broker, mut worker, jobs, open) = start(2).await;
    assert_eq!(worker.extend(&jobs[0], HOUR).await, SettleStatus::Unavailable);
    assert_eq!(worker.extend(&jobs[1], HOUR).await, SettleStatus::Ok);
    let report = |job: &LeasedJob| howdah_proto::v1::ProgressReport {
        id: job.id,
        token: job.token,
        text: Some("half".into()),
        ..Default::default()
    };
    let results = worker.report(vec![report(&jobs[0]), report(&jobs[1])]).await;
    let statuses: Vec<_> = results.iter().map(|result| result.status()).collect();
    assert_eq!(statuses, [SettleStatus::Unavailable, SettleStatus::Ok]);
    open.commit().await;
    assert_eq!(worker.extend(&jobs[0], HOUR).await, SettleStatus::Ok);
}

#[tokio::test]
async fn jobs_of_a_worker_that_is_gone_go_to_others_though_one_of_them_is_locked() {
    let (broker, worker, jobs, open) = start_with(3, |c| c.session_grace = millis(100)).await;
    worker.vanish();
    let mut other = broker.worker("t").window(3).await;
    let mut ids: Vec<i64> = other.take(2).await.iter().map(|job| job.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [jobs[1].id, jobs[2].id]);
    open.roll_back().await;
    assert_eq!(other.next().await.id, jobs[0].id);
}

#[tokio::test]
async fn attempts_time_out_though_one_of_them_is_locked() {
    let broker = TestBroker::start().await;
    for _ in 0..2 {
        broker.enqueue("t").timeout(HOUR).retry_after_each(HOUR).await;
    }
    let mut worker = broker.worker("t").window(2).await;
    let jobs = worker.take(2).await;
    // With this lock, other transactions can update the deadline of the lease, but cannot delete its row.
    let sql = format!("SELECT FROM howdah.leased WHERE id = {} FOR KEY SHARE", jobs[0].id);
    let open = Open::after(&broker.database, "psql", &sql).await;
    broker.sql("UPDATE howdah.leased SET deadline = now()").await;
    let cancelled = worker.cancelled().await;
    assert_eq!((cancelled.id, cancelled.reason()), (jobs[1].id, CancelReason::Timeout));
    open.commit().await;
    assert_eq!(worker.cancelled().await.id, jobs[0].id);
}
