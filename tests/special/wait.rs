//! Waiting for jobs: request and reply over a queue.

use std::time::Duration;

use howdah_proto::v1::{Ack, JobState, LeasedJob, Nack, Outcome, WaitJobsRequest, outcome};
use tonic::Code;

use super::ids;
use crate::support::{TestBroker, Worker, database, jobs_client, new_job, soon};

fn outcome(job: &LeasedJob, outcome: outcome::Outcome) -> Outcome {
    Outcome { id: job.id, token: job.token, outcome: Some(outcome) }
}

fn waiting(ids: Vec<i64>) -> WaitJobsRequest {
    WaitJobsRequest { ids, timeout: Some(Duration::from_secs(50).try_into().unwrap()) }
}

#[tokio::test]
async fn who_waits_is_told_of_each_end_on_whichever_broker() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let jobs = ids(&a, vec![new_job("ask", "1"), new_job("ask", "2"), new_job("ask", "3")]).await;
    let mut worker = Worker::connect(&b.grpc, "ask", 10).await;
    let (first, second, third) = (worker.job().await, worker.job().await, worker.job().await);
    worker.ack(&first).await;
    let mut ends = jobs_client(&a.grpc).await.wait_jobs(waiting(jobs.clone())).await.unwrap().into_inner();
    let ended = soon("the first", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, ended.state()), (jobs[0], JobState::Succeeded));
    let ack = outcome::Outcome::Ack(Ack { result: "answer".into(), ..Ack::default() });
    worker.settle(vec![outcome(&second, ack)]).await;
    let ended = soon("the second", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, &ended.result[..]), (jobs[1], &b"answer"[..]));
    let nack = outcome::Outcome::Nack(Nack { error: "no".into(), no_retry: true, ..Nack::default() });
    worker.settle(vec![outcome(&third, nack)]).await;
    let ended = soon("the third", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, ended.state(), ended.failures.len()), (jobs[2], JobState::Dead, 1));
    assert!(soon("the end", ends.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn who_waits_again_writes_nothing() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let job = ids(&broker, vec![new_job("ask", "")]).await;
    let mut client = jobs_client(&broker.grpc).await;
    let mut rows = Vec::new();
    for _ in 0..3 {
        let look = WaitJobsRequest { ids: job.clone(), timeout: Some(Duration::ZERO.try_into().unwrap()) };
        let mut ends = client.wait_jobs(look).await.unwrap().into_inner();
        assert_eq!(soon("an error", ends.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
        rows.push(database.count("SELECT xmin::text::bigint FROM howdah.ready").await);
    }
    assert_eq!(rows[0], rows[1]);
    assert_eq!(rows[1], rows[2]);
}

#[tokio::test]
async fn a_job_that_never_was_and_a_time_that_is_over_are_told() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let id = ids(&broker, vec![new_job("ask", "")]).await[0];
    let mut client = jobs_client(&broker.grpc).await;
    let mut ends = client.wait_jobs(waiting(vec![id, 1_000_000])).await.unwrap().into_inner();
    assert_eq!(soon("an error", ends.message()).await.unwrap_err().code(), Code::NotFound);
    let look = WaitJobsRequest { ids: vec![id], timeout: Some(Duration::ZERO.try_into().unwrap()) };
    let mut ends = client.wait_jobs(look).await.unwrap().into_inner();
    assert_eq!(soon("an error", ends.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn who_hangs_up_in_the_middle_of_large_results_leaves_no_room_taken() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let large = vec![7; 900_000];
    let jobs = ids(&broker, (0..8).map(|_| new_job("large", large.clone())).collect()).await;
    let mut worker = Worker::connect(&broker.grpc, "large", 8).await;
    for _ in &jobs {
        let job = worker.job().await;
        let ack = Ack { result: large.clone().into(), ..Ack::default() };
        worker.settle(vec![outcome(&job, outcome::Outcome::Ack(ack))]).await;
    }
    // All have ended, so they are told of in their order.
    for _ in &jobs {
        worker.settled().await;
    }
    let mut client = jobs_client(&broker.grpc).await.max_decoding_message_size(8 << 20);
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
