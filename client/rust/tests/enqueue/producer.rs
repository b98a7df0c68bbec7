//! Tests of producers: many jobs over one `StreamEnqueue` stream.

use std::time::Duration;

use howdah_client::{Client, Enqueued, Producer, ProducerOptions, Receipt};
use tonic::{Code, Status};

use crate::{
    named,
    support::{FakeBroker, within},
    types,
};

/// Submits a job; the test awaits its receipt later.
async fn submit(producer: &Producer, name: &str) -> Receipt<Enqueued> {
    producer.submit(named(name)).await.unwrap()
}

#[tokio::test]
async fn one_job_goes_at_once() {
    let mut broker = FakeBroker::start().await;
    let producer = broker.client().await.producer();
    let receipt = submit(&producer, "a").await;
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    assert_eq!(types(&request.jobs), ["a"]);
    assert!(!request.request_key.is_empty());
    pipeline.store(&request, 7, true).await;
    let enqueued = within(receipt).await.unwrap();
    assert_eq!((enqueued.id, enqueued.is_new), (7, true));
}

#[tokio::test]
async fn jobs_gather_while_requests_are_in_flight() {
    let mut broker = FakeBroker::start().await;
    let mut options = ProducerOptions::default();
    options.max_in_flight = 1;
    let producer = broker.client().await.producer_with(options);
    let first = submit(&producer, "first").await;
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    let a = submit(&producer, "a").await;
    let both = producer.submit_all([named("b"), named("c")]).await.unwrap();
    pipeline.store(&request, 1, true).await;
    within(first).await.unwrap();
    let request = pipeline.next().await;
    assert_eq!(types(&request.jobs), ["a", "b", "c"]);
    pipeline.store(&request, 2, true).await;
    assert_eq!(within(a).await.unwrap().id, 2);
    let ids: Vec<i64> = within(both).await.unwrap().iter().map(|job| job.id).collect();
    assert_eq!(ids, [3, 4]);
}

#[tokio::test]
async fn a_request_is_never_larger_than_allowed() {
    let mut broker = FakeBroker::start().await;
    let mut options = ProducerOptions::default();
    options.max_in_flight = 1;
    options.max_batch_jobs = 2;
    let producer = broker.client().await.producer_with(options);
    let first = submit(&producer, "first").await;
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    let three = producer.submit_all(["a", "b", "c"].map(named)).await.unwrap();
    let last = submit(&producer, "d").await;
    pipeline.store(&request, 1, true).await;
    within(first).await.unwrap();
    let request = pipeline.next().await;
    assert_eq!(types(&request.jobs), ["a", "b", "c"], "jobs of one submission stay together");
    pipeline.store(&request, 2, true).await;
    within(three).await.unwrap();
    let request = pipeline.next().await;
    assert_eq!(types(&request.jobs), ["d"]);
    pipeline.store(&request, 5, true).await;
    within(last).await.unwrap();
}

#[tokio::test]
async fn unanswered_requests_are_repeated_with_the_same_request_key_after_a_reconnect() {
    let mut broker = FakeBroker::start().await;
    let producer = broker.client().await.producer();
    let receipt = submit(&producer, "a").await;
    let keyed = producer.submit(named("b").key("k")).await.unwrap();
    let mut pipeline = broker.pipeline().await;
    let mut jobs = Vec::new();
    let mut requests = Vec::new();
    while jobs.len() < 2 {
        let request = pipeline.next().await;
        jobs.extend(request.jobs.clone());
        requests.push(request);
    }
    pipeline.break_off(Status::unavailable("gone")).await;

    let mut pipeline = broker.pipeline().await;
    for first in &requests {
        let again = pipeline.next().await;
        assert_eq!(again.request_key, first.request_key);
        assert_eq!(again.jobs, first.jobs);
        let id = if again.jobs[0].task_type == "a" { 1 } else { 2 };
        // The fake broker reports `is_new` as false, as if it had stored the job before the stream broke.
        pipeline.store(&again, id, false).await;
    }
    let enqueued = within(receipt).await.unwrap();
    assert!(enqueued.is_new, "only this producer can have used its key");
    assert!(!within(keyed).await.unwrap().is_new, "an earlier job may hold the job's key");
}

#[tokio::test]
async fn an_unavailable_request_is_repeated_on_the_same_stream() {
    let mut broker = FakeBroker::start().await;
    let producer = broker.client().await.producer();
    let receipt = submit(&producer, "a").await;
    let mut pipeline = broker.pipeline().await;
    let first = pipeline.next().await;
    pipeline.refuse(&first, Code::Unavailable, "").await;
    let again = pipeline.next().await;
    assert_eq!(again.request_key, first.request_key);
    assert_ne!(again.sequence, first.sequence);
    pipeline.store(&again, 1, true).await;
    within(receipt).await.unwrap();
}

#[tokio::test]
async fn a_refused_job_fails_alone() {
    let mut broker = FakeBroker::start().await;
    let mut options = ProducerOptions::default();
    options.max_in_flight = 1;
    let producer = broker.client().await.producer_with(options);
    let first = submit(&producer, "first").await;
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    let good = submit(&producer, "good").await;
    let bad = producer.submit_all([named("fine"), named("")]).await.unwrap();
    let also_good = submit(&producer, "also").await;
    pipeline.store(&request, 1, true).await;
    within(first).await.unwrap();

    let request = pipeline.next().await;
    assert_eq!(types(&request.jobs), ["good", "fine", "", "also"]);
    pipeline.refuse(&request, Code::InvalidArgument, "jobs[2].task_type").await;
    let error = within(bad).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(error.field(), Some("jobs[1].task_type"), "the index counts within the submission, not the request");
    assert_eq!(error.reason(), Some("INVALID_FIELD"));

    let rest = pipeline.next().await;
    assert_eq!(types(&rest.jobs), ["good", "also"]);
    assert_ne!(rest.request_key, request.request_key, "other jobs need another key");
    pipeline.store(&rest, 2, true).await;
    assert_eq!(within(good).await.unwrap().id, 2);
    assert_eq!(within(also_good).await.unwrap().id, 3);
}

#[tokio::test]
async fn a_refused_job_that_the_error_does_not_name_is_found_by_splitting_the_batch() {
    let mut broker = FakeBroker::start().await;
    let mut options = ProducerOptions::default();
    options.max_in_flight = 1;
    let producer = broker.client().await.producer_with(options);
    let first = submit(&producer, "first").await;
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    let mut receipts = Vec::new();
    for name in ["a", "b", "bad", "d", "e"] {
        receipts.push(submit(&producer, name).await);
    }
    pipeline.store(&request, 1, true).await;
    within(first).await.unwrap();
    let mut stored = Vec::new();
    loop {
        let request = pipeline.next().await;
        if types(&request.jobs).contains(&"bad") {
            pipeline.refuse(&request, Code::InvalidArgument, "").await;
            if request.jobs.len() == 1 {
                break;
            }
        } else {
            stored.extend(types(&request.jobs).iter().map(ToString::to_string));
            pipeline.store(&request, 1, true).await;
        }
    }
    assert!(within(receipts.remove(2)).await.is_err());
    let waiting = tokio::spawn(async move {
        for receipt in receipts {
            within(receipt).await.unwrap();
        }
    });
    while stored.len() < 4 {
        let request = pipeline.next().await;
        stored.extend(types(&request.jobs).iter().map(ToString::to_string));
        pipeline.store(&request, 1, true).await;
    }
    within(waiting).await.unwrap();
    assert_eq!(stored, ["a", "b", "d", "e"], "the jobs keep their order");
}

#[tokio::test]
async fn a_request_that_breaks_the_stream_is_repeated_as_a_unary_call_to_get_its_error() {
    let mut broker = FakeBroker::start().await;
    let producer = broker.client().await.producer();
    let large = submit(&producer, "large").await;
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    pipeline.break_off(Status::out_of_range("message too large")).await;
    let call = broker.call().await;
    assert_eq!(call.request.request_key, request.request_key);
    call.fail(Status::out_of_range("message too large"));
    assert_eq!(within(large).await.unwrap_err().code(), Code::OutOfRange);

    let small = submit(&producer, "small").await;
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    pipeline.store(&request, 1, true).await;
    within(small).await.unwrap();
}

#[tokio::test]
async fn a_job_larger_than_a_message_is_refused_before_it_is_sent() {
    let broker = FakeBroker::start().await;
    let client = Client::builder().endpoint(broker.url()).max_message_bytes(1000);
    let producer = client.connect().await.unwrap().producer();
    let error = producer.enqueue(named("a").payload(vec![0; 1000])).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn without_an_answer_an_enqueue_ends_at_its_deadline() {
    let broker = FakeBroker::start().await;
    let client =
        Client::builder().endpoint(broker.url()).request_timeout(Duration::from_millis(500)).connect().await.unwrap();
    let producer = client.producer();
    // The fake broker accepts the connection, but the test does not take the stream. So the broker never answers it.
    let sent = submit(&producer, "a").await;
    let error = within(sent).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(error.is_retryable() && error.is_effect_unknown());

    let error = within(client.enqueue(named("a"))).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(error.to_string().ends_with("it is unknown whether this took effect"), "{error}");
}

#[tokio::test]
async fn submitting_waits_while_the_queue_is_full() {
    let mut broker = FakeBroker::start().await;
    let mut options = ProducerOptions::default();
    options.max_queued_bytes = 1000;
    let producer = broker.client().await.producer_with(options);
    let large = producer.submit(named("a").payload(vec![0; 900])).await.unwrap();
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    let waiting = tokio::spawn({
        let producer = producer.clone();
        async move { producer.enqueue(named("b").payload(vec![0; 900])).await }
    });
    tokio::task::yield_now().await;
    pipeline.store(&request, 1, true).await;
    within(large).await.unwrap();
    let request = pipeline.next().await;
    assert_eq!(types(&request.jobs), ["b"]);
    pipeline.store(&request, 2, true).await;
    assert_eq!(within(waiting).await.unwrap().unwrap().id, 2);
    within(producer.flush()).await.unwrap();
}

#[tokio::test]
async fn submitted_jobs_are_sent_after_the_last_producer_is_dropped() {
    let mut broker = FakeBroker::start().await;
    let producer = broker.client().await.producer();
    let receipt = submit(&producer, "a").await;
    drop(producer);
    let mut pipeline = broker.pipeline().await;
    let request = pipeline.next().await;
    pipeline.store(&request, 1, true).await;
    within(receipt).await.unwrap();
    pipeline.closed().await;
}

#[tokio::test]
async fn a_producer_goes_on_to_the_next_endpoint() {
    let mut first = FakeBroker::start().await;
    let mut second = FakeBroker::start().await;
    let client = Client::builder().endpoints([first.url(), second.url()]);
    let producer = client.connect().await.unwrap().producer();
    let receipt = submit(&producer, "a").await;
    let mut pipeline = first.pipeline().await;
    let lost = pipeline.next().await;
    drop(first);
    drop(pipeline);
    let mut pipeline = second.pipeline().await;
    let request = pipeline.next().await;
    assert_eq!(request.request_key, lost.request_key);
    pipeline.store(&request, 1, true).await;
    within(receipt).await.unwrap();
}
