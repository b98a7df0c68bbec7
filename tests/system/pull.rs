//! Tests pulling jobs by unary calls instead of a stream.

use howdah_proto::v1::{JobState, PullJobsRequest, SettleStatus};
use prost::Message as _;

use crate::{
    hostile::raw::{Frame, Http2, data, frame, headers},
    support::*,
};

#[tokio::test]
async fn pulled_jobs_time_out_at_the_deadline_of_their_lease() {
    // A retried job waits for an hour, so that the test finds it scheduled.
    let broker = TestBroker::start_with(|c| c.retry.initial = HOUR).await;
    // The pull call waits, because it begins before the first job exists. The first job ends the wait.
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

#[tokio::test]
async fn jobs_of_an_answer_that_cannot_be_sent_are_ready_again_and_their_attempt_does_not_count() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("u", vec![0; 5_000])).await;
    let mut request = Vec::new();
    let pull = PullJobsRequest {
        task_types: vec!["u".into()],
        max_jobs: 1,
        lease_duration: Some(wire(HOUR)),
        ..Default::default()
    };
    pull.encode(&mut request).unwrap();
    // With an HTTP/2 stream window of 0, the broker can send the headers of the response but no data.
    let mut caller = Http2::connect_with_window(&broker.grpc, 0).await;
    let call = [
        headers(1, "/howdah.v1.WorkerService/PullJobs"),
        data(1, &request),
        frame(Frame::DATA, Frame::END_STREAM, 1, &[]),
    ];
    caller.write(&call.concat()).await.unwrap();
    while caller.next().await.expect("an answer").kind != Frame::HEADERS {}
    assert_eq!(broker.state(id).await, JobState::Leased);
    drop(caller);
    broker.until_state(id, JobState::Ready).await;
    assert_eq!(broker.job(id).await.attempt, 0);
}
