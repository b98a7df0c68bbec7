//! Tests attempts whose workers move to another broker: each broker exports a span of the attempt, in the trace of the
//! job.

use super::{
    Trace,
    collector::{Collector, Seen},
    context_of, named, names,
};
use crate::support::*;

/// Returns number and outcome of each attempt span of a job. The job must have waited once.
fn attempts(spans: &[Seen]) -> Vec<(&str, &str)> {
    assert_eq!(named(spans, "wait mail").len(), 1, "it has waited once: {spans:?}");
    let attempts = named(spans, "attempt mail").into_iter();
    attempts.map(|span| (span.attribute("howdah.attempt"), span.attribute("howdah.outcome"))).collect()
}

#[tokio::test]
async fn an_attempt_that_moves_to_another_broker_has_a_moved_span_and_a_second_span_there() {
    let collector = Collector::start().await;
    let (a, b) = collector.pair_with_ratio(0.0).await;
    let [trace, failed] = [Trace::new(), Trace::new()];
    a.enqueue_all([&trace, &failed].map(|trace| new_job("mail", "").with(|job| job.traceparent = trace.sampled())))
        .await;
    let mut worker = a.worker("mail").window(2).await;
    let jobs = worker.take(2).await;
    let session_id = worker.welcome.session_id.clone();
    worker.vanish();
    let mut worker = b.worker("mail").window(2).resumes(&session_id, &[&jobs[0], &jobs[1]]).await;
    let spans = collector.spans(&trace.id, 2).await;
    assert_eq!((names(&spans), attempts(&spans)), (vec!["wait mail", "attempt mail"], vec![("1", "moved")]));
    worker.ack(&jobs[0]).await;
    worker.nack(&jobs[1], "no route").no_retry().await;
    let spans = collector.spans(&trace.id, 3).await;
    assert_eq!(attempts(&spans), [("1", "moved"), ("1", "ack")]);
    assert!(spans.iter().all(|span| span.parent == trace.span && !span.is_error), "{spans:?}");
    assert!(spans[1].start < spans[2].start && spans[2].start <= spans[2].end, "{spans:?}");
    let spans = collector.spans(&failed.id, 3).await;
    assert_eq!(attempts(&spans), [("1", "moved"), ("1", "dead")]);
    assert_eq!((spans[2].is_error, spans[2].error.as_str()), (true, "no route"));
}

#[tokio::test]
async fn an_attempt_that_comes_back_has_a_span_for_each_time_in_a_trace_that_the_broker_has_made() {
    let collector = Collector::start().await;
    let (a, b) = collector.pair_with_ratio(1.0).await;
    a.enqueue("mail").await;
    let mut worker = a.worker("mail").window(1).await;
    let job = worker.next().await;
    let (trace, creation) = context_of(&job);
    for broker in [&b, &a] {
        let session_id = worker.welcome.session_id.clone();
        worker.vanish();
        // While the broker is still releasing jobs of the worker's session, it asks the worker to try again.
        worker = loop {
            match broker.worker("mail").window(1).resumes(&session_id, &[&job]).answer().await {
                Ok(worker) => break worker,
                Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}"),
            }
        };
    }
    worker.ack(&job).await;
    // The trace has five spans: the creation, the wait, and three spans of the attempt.
    let spans = collector.spans(&trace, 5).await;
    assert_eq!(attempts(&spans), [("1", "moved"), ("1", "moved"), ("1", "ack")]);
    assert!(named(&spans, "attempt mail").iter().all(|span| span.parent == creation), "{spans:?}");
}

#[tokio::test]
async fn an_attempt_that_stays_at_its_broker_while_its_stream_changes_is_one_span() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let trace = Trace::new();
    broker.enqueue("mail").trace(&trace.sampled()).await;
    let mut worker = broker.worker("mail").window(1).await;
    let job = worker.next().await;
    let session_id = worker.welcome.session_id.clone();
    worker.vanish();
    let mut worker = broker.worker("mail").window(1).resumes(&session_id, &[&job]).await;
    worker.ack(&job).await;
    let spans = collector.spans(&trace.id, 2).await;
    assert_eq!(attempts(&spans), [("1", "ack")]);
}
