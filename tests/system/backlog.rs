//! Tests the backlog limit of a task type: enqueue calls beyond the limit are refused with a retry delay.

use howdah_proto::v1::{NewJob, StreamEnqueueRequest, TaskTypeSettings};
use tonic::Code;

use crate::support::*;

fn jobs(task_type: &str, count: usize) -> Vec<NewJob> {
    vec![new_job(task_type, ""); count]
}

fn at_most(jobs: i64) -> TaskTypeSettings {
    TaskTypeSettings { max_backlog: jobs, ..TaskTypeSettings::default() }
}

/// Starts two brokers, limits the backlog of type `b` to ten jobs, and enqueues eight.
async fn nearly_full() -> (TestBroker, TestBroker) {
    let (a, b) = TestBroker::pair().await;
    a.set("b", at_most(10)).await;
    a.settings_reach(&b).await;
    a.enqueue_all(jobs("b", 8)).await;
    (a, b)
}

#[tokio::test]
async fn an_enqueue_over_the_largest_backlog_is_exhausted_and_told_when_to_try_again() {
    let (a, b) = nearly_full().await;
    for broker in [&a, &b] {
        let refused = broker.enqueue_all([jobs("other", 1), jobs("b", 3)].concat()).refused().await;
        assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "BACKLOG_FULL"));
        let text = &refused.message;
        assert!(text.contains("jobs of b") && text.contains("max_backlog of 10") && text.contains("8 wait"), "{text}");
        let after = refused.retry_after.expect("a delay");
        assert!(!after.is_zero() && after.as_secs() <= 10, "{after:?}");
    }
    // The refused requests stored nothing. Jobs of other types are accepted, and as many jobs of type `b` as the limit still
    // permits.
    assert_eq!(a.count("SELECT count(*) FROM howdah.job").await, 8);
    a.enqueue_all([jobs("other", 20), jobs("b", 2)].concat()).await;
    assert_eq!(a.enqueue("b").delay(MINUTE).refused().await.code, Code::ResourceExhausted);
    // A request with more jobs than the limit can never succeed, so it is invalid.
    a.enqueue_all(jobs("b", 11)).refused().await.names("jobs");
    let metrics = a.metrics().await;
    assert!(metrics.contains("howdah_backlog_refusals_total 2\n"), "{metrics}");
    // When a worker takes jobs, its broker knows at once that the backlog has room. The other broker finds out at its next
    // periodic count.
    let mut worker = a.worker("b").await;
    for _ in 0..10 {
        let job = worker.next().await;
        worker.ack(&job).sent().await;
    }
    a.enqueue("b").await;
    eventually("room at the other broker", async || b.enqueue("b").answer().await.is_ok()).await;
}

#[tokio::test]
async fn in_a_pipeline_a_request_over_the_largest_backlog_fails_and_the_stream_goes_on() {
    let (a, _b) = nearly_full().await;
    a.enqueue_all(jobs("b", 2)).await;
    let requests = [(1, "b"), (2, "other")].map(|(sequence, task_type)| StreamEnqueueRequest {
        sequence,
        jobs: jobs(task_type, 1),
        ..StreamEnqueueRequest::default()
    });
    let mut answers = a.jobs().stream_enqueue(tokio_stream::iter(requests)).await.expect("stream").into_inner();
    let refused =
        with_timeout("an answer", answers.message()).await.expect("answer").expect("one").error.expect("an error");
    assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted as i32, "BACKLOG_FULL"));
    assert!(refused.retry_after.is_some());
    assert_eq!(with_timeout("an answer", answers.message()).await.expect("answer").expect("one").error, None);
    assert!(a.metrics().await.contains("howdah_backlog_refusals_total 1\n"));
}

#[tokio::test]
async fn jobs_that_workers_take_at_once_are_accepted_with_a_max_backlog_of_one() {
    let broker = TestBroker::start().await;
    broker.set("b", at_most(1)).await;
    let mut worker = broker.worker("b").await;
    for _ in 0..50 {
        broker.enqueue("b").await;
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history").await, 50);
}
