//! Tests expiry: a job that has not started in time is not run.

use howdah_proto::v1::{JobState, NewJob, SettleStatus};

use crate::support::*;

fn expiring() -> NewJob {
    new_job("late", "").expire_after(HOUR)
}

/// SQL that moves the expiry time of all ready jobs to the past, and makes the brokers' check for expired jobs due.
const OVER: &str = "UPDATE howdah.ready SET options = options || '{\"expire_at_us\": 1}';
    UPDATE howdah.expiry SET expire_at = now()";

#[tokio::test]
async fn a_job_that_does_not_start_in_time_expires() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(expiring()).await;
    assert!(broker.job(id).await.expire_time.is_some());
    broker.sql(OVER).await;
    assert_eq!(broker.wait(id).await.state(), JobState::Expired);
}

#[tokio::test]
async fn a_job_that_is_claimed_too_late_is_not_handed_out() {
    let broker = TestBroker::start().await;
    let late = broker.enqueue(expiring()).await;
    let fine = broker.enqueue(new_job("late", "fine")).await;
    // Changes only the expiry time in the job's options. The check of expired jobs is not due, so only the claim can find that
    // the job has expired.
    broker.sql("UPDATE howdah.ready SET options = options || '{\"expire_at_us\": 1}' WHERE options IS NOT NULL").await;
    let mut worker = broker.worker("late").await;
    assert_eq!(worker.next().await.id, fine);
    let late = broker.wait(late).await;
    assert_eq!((late.state(), late.attempt), (JobState::Expired, 0));
}

#[tokio::test]
async fn a_job_that_has_begun_does_not_expire() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(expiring()).await;
    let mut worker = broker.worker("late").await;
    let job = worker.next().await;
    over_while_it_is_leased(&broker).await;
    worker.nack(&job, "once more").at_once().await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (id, 2));
}

/// Makes the expiry time of a leased job pass, and waits until the broker has checked the job, which must not expire.
async fn over_while_it_is_leased(broker: &TestBroker) {
    broker
        .sql(
            "UPDATE howdah.leased SET options = options || '{\"expire_at_us\": 1}';
             UPDATE howdah.expiry SET expire_at = now()",
        )
        .await;
    broker
        .until("the check of expired jobs", "SELECT NOT EXISTS (SELECT FROM howdah.expiry WHERE expire_at <= now())")
        .await;
}

#[tokio::test]
async fn a_job_that_is_released_after_its_time_expires() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(expiring()).await;
    let child = broker.enqueue(new_job("late", "child").after(&[id])).await;
    // Pulls the job, so that no worker gets the released job again.
    let job = broker.pull("late").lease(HOUR).await.remove(0);
    over_while_it_is_leased(&broker).await;
    assert_eq!(broker.settle(vec![release(&job)]).await, [SettleStatus::Ok]);
    // Makes the check for expired jobs due now.
    broker.sql("UPDATE howdah.expiry SET expire_at = now()").await;
    assert_eq!(broker.wait(id).await.state(), JobState::Expired);
    assert_eq!(broker.wait(child).await.state(), JobState::Cancelled);
}

#[tokio::test]
async fn a_job_that_has_begun_and_is_snoozed_does_not_expire() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(expiring()).await;
    let mut worker = broker.worker("late").window(1).await;
    let job = worker.next().await;
    over_while_it_is_leased(&broker).await;
    worker.snooze(&job, secs(0)).await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (id, 1));
}

#[tokio::test]
async fn an_expiry_before_the_start_is_refused() {
    let broker = TestBroker::start().await;
    let refused = broker.enqueue("late").expire_after(MINUTE).delay(MINUTE).refused().await;
    refused.names("jobs[0].expire_after");
    assert!(refused.message.contains("counts from the enqueue"), "{refused}");
    assert!(refused.message.contains("set more than 60s"), "{refused}");
    broker.enqueue("late").expire_after(MINUTE + secs(1)).delay(MINUTE).await;
}
