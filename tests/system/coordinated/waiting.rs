//! Tests waiting for the end of jobs (`WaitJobs`): request and reply over a queue.

use howdah_core::config::WakeMode;
use howdah_proto::v1::{JobState, WaitJobsRequest};
use tonic::Code;

use crate::support::*;

fn waiting(ids: Vec<i64>) -> WaitJobsRequest {
    WaitJobsRequest { ids, timeout: Some(wire(PATIENCE)) }
}

#[tokio::test]
async fn a_waiter_is_told_of_each_job_that_ends_also_at_another_broker() {
    let (a, b) = TestBroker::pair().await;
    let jobs = a.enqueue_all([new_job("ask", "1"), new_job("ask", "2"), new_job("ask", "3")]).await;
    let mut worker = b.worker("ask").await;
    let (first, second, third) = (worker.next().await, worker.next().await, worker.next().await);
    worker.ack(&first).await;
    let mut ends = a.jobs().wait_jobs(waiting(jobs.clone())).await.unwrap().into_inner();
    let ended = with_timeout("the first job", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, ended.state()), (jobs[0], JobState::Succeeded));
    worker.ack(&second).result("answer").await;
    let ended = with_timeout("the second job", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, &ended.result[..]), (jobs[1], &b"answer"[..]));
    worker.nack(&third, "no").no_retry().await;
    let ended = with_timeout("the third job", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, ended.state(), ended.failures.len()), (jobs[2], JobState::Dead, 1));
    assert!(with_timeout("the end of the wait", ends.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn waiting_again_writes_nothing() {
    let broker = TestBroker::start().await;
    let job = broker.enqueue_all([new_job("ask", "")]).await;
    let mut client = broker.jobs();
    let mut rows = Vec::new();
    for _ in 0..3 {
        let look = WaitJobsRequest { ids: job.clone(), timeout: Some(wire(secs(0))) };
        let mut ends = client.wait_jobs(look).await.unwrap().into_inner();
        assert_eq!(with_timeout("an error", ends.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
        rows.push(broker.count("SELECT xmin::text::bigint FROM howdah.ready").await);
    }
    assert_eq!(rows[0], rows[1]);
    assert_eq!(rows[1], rows[2]);
}

#[tokio::test]
async fn a_wait_for_an_unknown_job_is_not_found_and_a_wait_past_its_timeout_is_reported() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("ask").await;
    let mut client = broker.jobs();
    let mut ends = client.wait_jobs(waiting(vec![id, 1_000_000])).await.unwrap().into_inner();
    assert_eq!(with_timeout("an error", ends.message()).await.unwrap_err().code(), Code::NotFound);
    let look = WaitJobsRequest { ids: vec![id], timeout: Some(wire(secs(0))) };
    let mut ends = client.wait_jobs(look).await.unwrap().into_inner();
    assert_eq!(with_timeout("an error", ends.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_waiter_that_hangs_up_in_the_middle_of_large_results_leaves_no_memory_taken() {
    let broker = TestBroker::start().await;
    let large = vec![7; 900_000];
    let jobs = broker.enqueue_all((0..8).map(|_| new_job("large", large.clone()))).await;
    let mut worker = broker.worker("large").window(8).await;
    for _ in &jobs {
        let job = worker.next().await;
        worker.ack(&job).result(large.clone()).await;
    }
    // All jobs have ended before the call, so the responses come in the order of the request.
    let mut client = broker.jobs().max_decoding_message_size(8 << 20);
    // Drops 80 calls after their first response. If dropped calls kept their memory, the broker's memory for responses would be
    // used up.
    for _ in 0..80 {
        let mut ends = client.wait_jobs(waiting(jobs.clone())).await.unwrap().into_inner();
        assert!(with_timeout("the first job", ends.message()).await.unwrap().is_some());
    }
    let mut ends = client.wait_jobs(waiting(jobs.clone())).await.unwrap().into_inner();
    for id in jobs {
        let job = with_timeout("a job", ends.message()).await.unwrap().unwrap().job.unwrap();
        assert_eq!((job.id, job.result.len(), job.payload.len()), (id, large.len(), large.len()));
    }
    assert!(with_timeout("the end of the wait", ends.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_job_that_is_retried_while_a_waiter_looks_for_it_is_waited_for() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("ask").window(1).await;
    let id = broker.enqueue("ask").await;
    let job = worker.next().await;
    worker.nack(&job, "no").no_retry().await;
    // The test retries the dead job between two steps of `WaitJobs`: the broker marks the job as awaited while it is dead, and
    // reads it when it is ready again.
    let retry = "ALTER FUNCTION howdah.mark_awaited RENAME TO mark_awaited_before;
                 CREATE FUNCTION howdah.mark_awaited(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
                 DECLARE live bigint[] := howdah.mark_awaited_before(ids);
                 BEGIN
                     PERFORM howdah.retry_now(d.id) FROM howdah.dead d WHERE d.id = ANY (ids);
                     RETURN live;
                 END $$";
    broker.sql(retry).await;
    let mut ends = broker.jobs().wait_jobs(waiting(vec![id])).await.unwrap().into_inner();
    let again = worker.next().await;
    worker.ack(&again).result("at last").await;
    let ended = with_timeout("the end of the job", ends.message()).await.unwrap().unwrap().job.unwrap();
    assert_eq!((ended.id, ended.state(), &ended.result[..]), (id, JobState::Succeeded, &b"at last"[..]));
}

#[tokio::test]
async fn a_job_that_ends_while_a_waiter_looks_at_others_is_told_as_it_ended() {
    // Without notifications, the broker polls all awaited jobs with one statement.
    let broker = TestBroker::start_with(|config| config.wake = WakeMode::Poll).await;
    let ids = broker.enqueue_all(["ask", "ask"]).await;
    let mut ends = broker.jobs().wait_jobs(waiting(ids.clone())).await.unwrap().into_inner();
    broker
        .until(
            "two jobs that are marked as awaited",
            "SELECT count(*) = 2 FROM howdah.ready WHERE options -> 'awaited' IS NOT NULL",
        )
        .await;
    // Makes the statement that polls awaited jobs cancel the second job while it reads the first.
    let cancel = "CREATE OR REPLACE FUNCTION howdah.coordination_of(job_id bigint, options jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
                  BEGIN
                      PERFORM howdah.cancel(r.id) FROM howdah.ready r;
                      RETURN NULL;
                  END $$";
    broker.sql(cancel).await;
    broker.sql(&format!("SELECT howdah.cancel({})", ids[0])).await;
    for id in ids {
        let ended = with_timeout("the end of a job", ends.message()).await.unwrap().unwrap().job.unwrap();
        assert_eq!((ended.id, ended.state()), (id, JobState::Cancelled));
    }
}
