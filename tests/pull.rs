//! Jobs by calls instead of a stream.

use howdah_proto::v1::{JobState, SettleStatus};

use crate::support::*;

#[tokio::test]
async fn pulled_jobs_live_by_their_own_deadline() {
    // What has run out is tried again long after we have looked.
    let broker = TestBroker::start_with(|c| c.retry.initial = HOUR).await;
    // It waits for the first job, and is woken by it.
    let waiting = tokio::spawn(broker.pull("u").up_to(2).wait(MINUTE).into_future());
    broker.enqueue_all(["u"; 3]).await;
    let jobs = waiting.await.unwrap();
    assert!(!jobs.is_empty() && jobs.len() <= 2 && jobs[0].deadline.is_some());
    let statuses = broker.settle(vec![ack(&jobs[0]), ack(&jobs[0])]).await;
    assert_eq!(statuses, [SettleStatus::Ok, SettleStatus::LeaseLost]);
    let job = broker.pull("u").up_to(2).wait(MINUTE).lease(secs(1)).await.remove(0);
    broker.until_state(job.id, JobState::Scheduled).await;
    assert_eq!(broker.settle(vec![ack(&job)]).await, [SettleStatus::LeaseLost]);
    assert_eq!(broker.state(job.id).await, JobState::Scheduled);
}
