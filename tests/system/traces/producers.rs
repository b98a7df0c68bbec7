//! Tests traces from every way of enqueueing: the Rust client, plain gRPC, HTTP, SQL.

use std::sync::OnceLock;

use howdah_client::{NewJob, Outcome};
use howdah_proto::v1::EnqueueJobsRequest;
use opentelemetry::{
    Context, global,
    trace::{FutureExt as _, SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tonic::Request;

use super::{Collector, Trace, named, names};
use crate::{http_producer::curl, support::*};

/// Returns the spans of a trace that clients in this process have recorded.
fn spans_of_clients(trace: &str) -> Vec<SpanData> {
    static SPANS: OnceLock<InMemorySpanExporter> = OnceLock::new();
    let spans = SPANS.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        global::set_tracer_provider(SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build());
        exporter
    });
    let spans = spans.get_finished_spans().expect("spans");
    spans.into_iter().filter(|span| span.span_context.trace_id().to_string() == trace).collect()
}

/// Returns an OpenTelemetry context within a trace, as an instrumented program has it.
pub fn context(trace: &Trace) -> Context {
    let (id, span) = (TraceId::from_hex(&trace.id).expect("an id"), SpanId::from_hex(&trace.span).expect("an id"));
    Context::new().with_remote_span_context(SpanContext::new(
        id,
        span,
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    ))
}

#[tokio::test]
async fn a_trace_goes_from_the_producer_through_the_broker_to_the_worker() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let trace = Trace::new();
    assert!(spans_of_clients(&trace.id).is_empty());
    let client = broker.client().await;
    let worker = client.worker().handle("mail", async |_| Outcome::ack("")).build().start();
    let enqueued = client.enqueue(NewJob::new("mail")).with_context(context(&trace)).await.expect("enqueue");
    let of_broker = collector.spans(&trace.id, 2).await;
    worker.stop().await.expect("a good end");
    let of_clients = spans_of_clients(&trace.id);
    let [send, process] = ["send mail", "process mail"].map(|name| of_clients.iter().find(|span| span.name == name));
    let (send, process) = (send.expect("a span of the producer"), process.expect("a span of the worker"));
    assert_eq!((send.span_kind.clone(), process.span_kind.clone()), (SpanKind::Producer, SpanKind::Consumer));
    assert_eq!(send.parent_span_id.to_string(), trace.span);
    let creation = send.span_context.span_id();
    assert_eq!(process.parent_span_id, creation);
    assert_eq!(names(&of_broker), ["wait mail", "attempt mail"]);
    for span in of_broker {
        assert_eq!(span.parent, creation.to_string());
        assert_eq!(span.attribute("messaging.message.id"), enqueued.id.to_string());
    }
}

#[tokio::test]
async fn a_call_gives_its_trace_to_the_jobs_that_have_none() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let [of_call, of_job] = [Trace::new(), Trace::new()];
    let own = new_job("mail", "").with(|job| job.traceparent = of_job.sampled());
    let jobs = vec![new_job("mail", ""), own];
    let mut request = Request::new(EnqueueJobsRequest { jobs, request_key: String::new() });
    request.metadata_mut().insert("traceparent", of_call.sampled().parse().expect("ASCII"));
    request.metadata_mut().insert("tracestate", "vendor=abc".parse().expect("ASCII"));
    broker.jobs().enqueue_jobs(request).await.expect("enqueue");
    let mut worker = broker.worker("mail").window(2).await;
    let jobs = worker.take(2).await;
    let contexts: Vec<_> = jobs.iter().map(|job| (job.traceparent.clone(), job.tracestate.as_str())).collect();
    assert_eq!(contexts, [(of_call.sampled(), "vendor=abc"), (of_job.sampled(), "")]);
    for job in &jobs {
        worker.ack(job).await;
    }
    for trace in [of_call, of_job] {
        let spans = collector.spans(&trace.id, 2).await;
        assert_eq!((spans.len(), spans[0].parent.as_str()), (2, trace.span.as_str()));
    }
}

#[tokio::test]
async fn an_http_request_gives_its_trace_to_its_jobs() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let [single, batch] = [Trace::new(), Trace::new()];
    let header = |trace: &Trace| format!("traceparent: {}", trace.sampled());
    let (status, _) = curl(&broker, "/v1/jobs/mail", &[&header(&single)], b"").await;
    assert_eq!(status, 200);
    let body = br#"{"jobs": [{"taskType": "mail"}, {"taskType": "mail"}]}"#;
    let (status, answer) = curl(&broker, "/v1/jobs", &[&header(&batch)], body).await;
    assert_eq!(status, 200, "{answer}");
    let mut worker = broker.worker("mail").window(3).await;
    for _ in 0..3 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    assert_eq!(collector.spans(&single.id, 2).await.len(), 2);
    let spans = collector.spans(&batch.id, 4).await;
    assert_eq!(named(&spans, "attempt mail").len(), 2);
}

#[tokio::test]
async fn a_transaction_gives_its_trace_to_the_job_that_it_enqueues() {
    let collector = Collector::start().await;
    let broker = collector.broker().await;
    let trace = Trace::new();
    broker.sql(&format!("SELECT howdah.enqueue('mail', 'x', traceparent => '{}')", trace.sampled())).await;
    let mut worker = broker.worker("mail").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    let spans = collector.spans(&trace.id, 2).await;
    assert_eq!((names(&spans), spans[1].parent.as_str()), (vec!["wait mail", "attempt mail"], trace.span.as_str()));
}
