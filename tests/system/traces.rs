//! Tests spans of sampled jobs: export to a collector, and propagation of the trace from producer to worker.

mod unavailable; // an unavailable collector
mod client; // the spans and metrics of the Rust client
mod collector; // a test collector
mod elsewhere; // attempts that continue at another broker
mod producers; // all ways to enqueue, and spans of producers
mod tls; // a collector with TLS
mod watched; // a client and its telemetry

use howdah_proto::v1::{JobState, LeasedJob};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

use crate::support::*;
use collector::{Collector, Seen};

/// A new trace, and the id of a span in the trace.
struct Trace {
    id: String,
    span: String,
}

impl Trace {
    fn new() -> Self {
        Self { id: format!("{:032x}", rand::random::<u128>()), span: format!("{:016x}", rand::random::<u64>()) }
    }

    /// The W3C `traceparent` of the span, with the sampled flag.
    fn sampled(&self) -> String {
        format!("00-{}-{}-01", self.id, self.span)
    }

    fn not_sampled(&self) -> String {
        format!("00-{}-{}-00", self.id, self.span)
    }
}

fn names(spans: &[Seen]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

/// The spans with this name, ordered by time.
fn named<'a>(spans: &'a [Seen], name: &str) -> Vec<&'a Seen> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[tokio::test]
async fn an_attempt_of_a_worker_without_opentelemetry_is_in_the_trace_of_its_job() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let trace = Trace::new();
    let id = broker.enqueue("mail").trace(&trace.sampled()).await;
    let mut worker = broker.worker("mail").window(1).await;
    let job = worker.next().await;
    assert_eq!(job.traceparent, trace.sampled());
    worker.ack(&job).await;
    let spans = collector.spans(&trace.id, 2).await;
    assert_eq!(names(&spans), ["wait mail", "attempt mail"]);
    for (span, operation) in spans.iter().zip(["wait", "attempt"]) {
        assert_eq!((span.parent.as_str(), span.kind), (trace.span.as_str(), SpanKind::Internal));
        assert_eq!(span.attribute("messaging.system"), "howdah");
        assert_eq!(span.attribute("messaging.operation.name"), operation);
        assert_eq!(span.attribute("messaging.destination.name"), "mail");
        assert_eq!(span.attribute("messaging.message.id"), id.to_string());
        assert_eq!(span.attribute("howdah.attempt"), "1");
        assert!(!span.is_error && span.start <= span.end);
    }
    // The attempt's span starts when the span of the wait ends.
    assert_eq!(spans[0].end, spans[1].start);
    assert_eq!(spans[1].attribute("howdah.outcome"), "ack");
    assert_eq!(collector.resource("service.name"), "howdah");
    assert!(collector.resource("service.instance.id").starts_with("broker-"));
}

#[tokio::test]
async fn a_job_enqueued_directly_to_a_worker_has_the_same_spans() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let mut worker = broker.worker("mail").window(10).await;
    let trace = Trace::new();
    broker.enqueue("mail").trace(&trace.sampled()).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(names(&collector.spans(&trace.id, 2).await), ["wait mail", "attempt mail"]);
}

#[tokio::test]
async fn a_retry_is_one_more_wait_and_one_more_attempt() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let trace = Trace::new();
    broker.enqueue("mail").trace(&trace.sampled()).await;
    let mut worker = broker.worker("mail").window(1).await;
    let first = worker.next().await;
    worker.nack(&first, "no route").retry_after(millis(1)).await;
    let second = worker.next().await;
    worker.ack(&second).await;
    let spans = collector.spans(&trace.id, 4).await;
    let (waits, attempts) = (named(&spans, "wait mail"), named(&spans, "attempt mail"));
    assert_eq!((waits.len(), attempts.len()), (2, 2));
    let outcomes: Vec<_> = attempts.iter().map(|span| span.attribute("howdah.outcome")).collect();
    let numbers: Vec<_> = attempts.iter().map(|span| span.attribute("howdah.attempt")).collect();
    assert_eq!((outcomes, numbers), (vec!["retry", "ack"], vec!["1", "2"]));
    assert_eq!((attempts[0].is_error, attempts[0].error.as_str()), (true, "no route"));
    assert_eq!(attempts[0].attribute("error.type"), "retry");
    assert!(!attempts[1].is_error);
}

#[tokio::test]
async fn jobs_that_are_not_sampled_have_no_spans() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let [not_sampled, sampled] = [Trace::new(), Trace::new()];
    broker.enqueue("mail").trace(&not_sampled.not_sampled()).await;
    broker.enqueue("mail").trace("no trace context").await;
    broker.enqueue("mail").await;
    broker.enqueue("mail").trace(&sampled.sampled()).await;
    let mut worker = broker.worker("mail").window(10).await;
    for _ in 0..4 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    // Waits for the spans of this job. The job ended last, and spans are exported in the order of their ends, so no other spans
    // can follow.
    collector.spans(&sampled.id, 2).await;
    assert_eq!(collector.traces(), [sampled.id]);
}

#[tokio::test]
async fn a_sampled_job_without_a_trace_gets_one_which_its_worker_and_its_retries_share() {
    let collector = Collector::start().await;
    let broker = collector.broker_with_ratio(1.0).await;
    let id = broker.enqueue("mail").await;
    let mut worker = broker.worker("mail").window(1).await;
    let first = worker.next().await;
    let (trace, span) = context_of(&first);
    worker.nack(&first, "no route").retry_after(millis(1)).await;
    let second = worker.next().await;
    assert_eq!(second.traceparent, first.traceparent);
    worker.ack(&second).await;
    let spans = collector.spans(&trace, 5).await;
    let created = named(&spans, "create mail")[0];
    assert_eq!((created.parent.as_str(), &created.id, created.kind), ("", &span, SpanKind::Producer));
    assert_eq!(created.attribute("messaging.message.id"), id.to_string());
    assert!(spans.iter().filter(|other| other.id != span).all(|other| other.parent == span), "{spans:?}");
    // The trace context is not stored in history.
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history WHERE options ? 'traceparent'").await, 0);
    assert_eq!(broker.state(id).await, JobState::Succeeded);
}

/// Returns the ids of the trace and of the span in a job's `traceparent`.
fn context_of(job: &LeasedJob) -> (String, String) {
    let parts: Vec<&str> = job.traceparent.split('-').collect();
    (parts[1].to_owned(), parts[2].to_owned())
}

#[tokio::test]
async fn the_span_of_an_attempt_has_its_outcome() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let mut worker = broker.worker("mail").window(1).await;
    let mut traces = Vec::new();
    for outcome in ["dead", "snooze", "release", "cancelled", "timeout"] {
        let trace = Trace::new();
        let job = broker.enqueue("mail").trace(&trace.sampled());
        if outcome == "timeout" {
            // The timeout may pass before a worker receives the job.
            let id = job.timeout(millis(1)).max_attempts(1).await;
            broker.until_state(id, JobState::Dead).await;
            traces.push((outcome, trace));
            break;
        }
        let id = job.await;
        let job = worker.next().await;
        match outcome {
            "dead" => worker.nack(&job, "no route").no_retry().await,
            "snooze" => worker.snooze(&job, HOUR).await,
            "release" => {
                // Closes the window, so that the released job is not delivered again.
                worker.window("mail", 0).await;
                worker.release(&job).await;
                broker.cancel(&[id]).await;
                worker.window("mail", 1).await;
            }
            _ => {
                broker.cancel(&[id]).await;
                worker.cancelled().await;
            }
        }
        traces.push((outcome, trace));
    }
    for (outcome, trace) in traces {
        let spans = collector.spans(&trace.id, 2).await;
        assert_eq!(spans[1].attribute("howdah.outcome"), outcome, "{spans:?}");
        assert_eq!(spans[1].is_error, matches!(outcome, "dead" | "timeout"), "{outcome}");
    }
}

#[tokio::test]
async fn a_job_that_was_pulled_has_the_same_spans() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let trace = Trace::new();
    broker.enqueue("mail").trace(&trace.sampled()).await;
    let jobs = broker.pull("mail").await;
    broker.settle(vec![ack(&jobs[0])]).await;
    let spans = collector.spans(&trace.id, 2).await;
    assert_eq!((names(&spans), spans[1].attribute("howdah.outcome")), (vec!["wait mail", "attempt mail"], "ack"));
}

#[tokio::test]
async fn a_stopping_broker_exports_its_remaining_spans() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let [done, under_way] = [Trace::new(), Trace::new()];
    broker.enqueue("mail").trace(&done.sampled()).await;
    broker.enqueue("mail").trace(&under_way.sampled()).await;
    let mut worker = broker.worker("mail").window(2).await;
    let jobs = worker.take(2).await;
    worker.ack(&jobs[0]).await;
    worker.vanish();
    broker.stop().await;
    // The broker exported these spans before it stopped.
    assert_eq!(collector.spans(&done.id, 2).await[1].attribute("howdah.outcome"), "ack");
    assert_eq!(collector.spans(&under_way.id, 2).await[1].attribute("howdah.outcome"), "moved");
}

#[tokio::test]
async fn headers_of_the_headers_file_are_sent_to_the_collector() {
    let collector = Collector::start().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "authorization: Bearer s3cret\n").expect("write");
    let broker = TestBroker::start_with(|config| {
        config.otlp.endpoint = Some(collector.endpoint.clone());
        config.otlp.headers_file = Some(file.path().to_owned());
    })
    .await;
    let trace = Trace::new();
    broker.enqueue("mail").trace(&trace.sampled()).await;
    let _worker = broker.worker("mail").window(1).await;
    collector.spans(&trace.id, 1).await;
    assert_eq!(collector.header("authorization"), "Bearer s3cret");
}

#[tokio::test]
async fn latencies_name_the_trace_of_a_sampled_job() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let trace = Trace::new();
    broker.enqueue("mail").trace(&trace.sampled()).await;
    let mut worker = broker.worker("mail").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    let metrics = broker.metrics().await;
    for name in ["howdah_pickup_latency_seconds_bucket", "howdah_settle_latency_seconds_bucket"] {
        let exemplar = format!("# {{trace_id=\"{}\",", trace.id);
        assert!(metrics.lines().any(|line| line.starts_with(name) && line.contains(&exemplar)), "{name}: {metrics}");
    }
}
