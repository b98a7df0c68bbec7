//! Waiting for jobs: request and reply over a queue.

use howdah_proto::v1::{JobState, WaitJobsRequest};
use tonic::Code;

use crate::support::*;

fn waiting(ids: Vec<i64>) -> WaitJobsRequest {
    WaitJobsRequest { ids, timeout: Some(wire(PATIENCE)) }
}

#[tokio::test]
async fn who_waits_is_told_of_each_end_on_whichever_broker() {
    let (a, b) = TestBroker::pair().await;
    let jobs = a.enqueue_all([new_job("ask", "1"), new_job("ask", "2"), new_job("ask", "3")]).await;
    let mut worker = b.worker("ask").await;
    let (first, second, third) = (worker.next().await, worker.next().await, worker.next().await);
    worker.ack(&first).await;
    let mut ends = a.jobs().wait_jobs(waiting(jobs.clone())).await.unwrap().into_inner();
    let ended = soon("the first", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, ended.state()), (jobs[0], JobState::Succeeded));
    worker.ack(&second).result("answer").await;
    let ended = soon("the second", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, &ended.result[..]), (jobs[1], &b"answer"[..]));
    worker.nack(&third, "no").no_retry().await;
    let ended = soon("the third", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, ended.state(), ended.failures.len()), (jobs[2], JobState::Dead, 1));
    assert!(soon("the end", ends.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn who_waits_again_writes_nothing() {
    let broker = TestBroker::start().await;
    let job = broker.enqueue_all([new_job("ask", "")]).await;
    let mut client = broker.jobs();
    let mut rows = Vec::new();
    for _ in 0..3 {
        let look = WaitJobsRequest { ids: job.clone(), timeout: Some(wire(secs(0))) };
        let mut ends = client.wait_jobs(look).await.unwrap().into_inner();
        assert_eq!(soon("an error", ends.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
        rows.push(broker.count("SELECT xmin::text::bigint FROM howdah.ready").await);
    }
    assert_eq!(rows[0], rows[1]);
    assert_eq!(rows[1], rows[2]);
}

#[tokio::test]
async fn a_job_that_never_was_and_a_time_that_is_over_are_told() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("ask").await;
    let mut client = broker.jobs();
    let mut ends = client.wait_jobs(waiting(vec![id, 1_000_000])).await.unwrap().into_inner();
    assert_eq!(soon("an error", ends.message()).await.unwrap_err().code(), Code::NotFound);
    let look = WaitJobsRequest { ids: vec![id], timeout: Some(wire(secs(0))) };
    let mut ends = client.wait_jobs(look).await.unwrap().into_inner();
    assert_eq!(soon("an error", ends.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn who_hangs_up_in_the_middle_of_large_results_leaves_no_room_taken() {
    let broker = TestBroker::start().await;
    let large = vec![7; 900_000];
    let jobs = broker.enqueue_all((0..8).map(|_| new_job("large", large.clone()))).await;
    let mut worker = broker.worker("large").window(8).await;
    for _ in &jobs {
        let job = worker.next().await;
        worker.ack(&job).result(large.clone()).await;
    }
    // All have ended, so they are told of in their order.
    let mut client = broker.jobs().max_decoding_message_size(8 << 20);
    // More than what may be on its way to all callers, if any of it were left behind.
    for _ in 0..80 {
        let mut ends = client.wait_jobs(waiting(jobs.clone())).await.unwrap().into_inner();
        assert!(soon("the first", ends.message()).await.unwrap().is_some());
    }
    let mut ends = client.wait_jobs(waiting(jobs.clone())).await.unwrap().into_inner();
    for id in jobs {
        let job = soon("each", ends.message()).await.unwrap().unwrap().job.unwrap();
        assert_eq!((job.id, job.result.len(), job.payload.len()), (id, large.len(), large.len()));
    }
    assert!(soon("the end", ends.message()).await.unwrap().is_none());
}
