//! Tests the spans and metrics of the Rust client, as documented in docs/operate/tracing.md.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use howdah_client::{Client, Job, JobError, NewJob, Outcome, Telemetry, WorkerHandle, new_request_key};
use howdah_proto::v1::JobState;
use opentelemetry::{
    Value,
    trace::{FutureExt as _, SpanKind, Status},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};
use tokio::sync::Notify;
use tonic::Code;

use super::{
    Trace,
    producers::context,
    watched::{Attributes, Watched, expected, has, named},
};
use crate::support::*;

fn error(text: &str) -> Status {
    Status::error(text.to_owned())
}

#[tokio::test]
async fn the_spans_of_a_job_are_its_enqueue_its_handler_and_its_outcome() {
    let broker = TestBroker::start().await;
    let watched = Watched::new(&broker).await;
    let worker = watched.worker(async |_| ());
    let trace = Trace::new();
    let id = watched.client.enqueue(NewJob::new("mail")).with_context(context(&trace)).await.expect("enqueue").id;
    broker.until_state(id, JobState::Succeeded).await;
    worker.stop().await.expect("a good end");

    let [send, process, ack] = ["send mail", "process mail", "ack mail"].map(|name| watched.span(name));
    let kinds = [&send, &process, &ack].map(|span| span.span_kind.clone());
    assert_eq!(kinds, [SpanKind::Producer, SpanKind::Consumer, SpanKind::Client]);
    assert_eq!(send.parent_span_id.to_string(), trace.span);
    assert_eq!(process.parent_span_id, send.span_context.span_id());
    assert_eq!(process.links[0].span_context.span_id(), send.span_context.span_id());
    assert_eq!(ack.parent_span_id, process.span_context.span_id());
    assert!([&send, &process, &ack].iter().all(|span| span.span_context.trace_id().to_string() == trace.id));
    assert!(process.end_time <= ack.start_time && ack.start_time < ack.end_time);

    let id = id.to_string();
    let message = ("messaging.message.id", id.as_str());
    assert_eq!(named(&send.attributes), expected(&broker, "send", "send", &[message]));
    let attempt = [message, ("howdah.attempt", "1")];
    assert_eq!(named(&process.attributes), expected(&broker, "process", "process", &attempt));
    assert_eq!(named(&ack.attributes), expected(&broker, "settle", "ack", &attempt));
    for (span, name) in [(&send, "server.port"), (&process, "howdah.attempt")] {
        let found = span.attributes.iter().find(|one| one.key.as_str() == name).expect(name);
        assert!(matches!(found.value, Value::I64(_)), "{name} is a number");
    }
    assert_eq!([send.status, process.status, ack.status], [Status::Unset, Status::Unset, Status::Unset]);
}

#[tokio::test]
async fn each_job_of_a_batch_has_a_span_to_which_its_handler_belongs() {
    let broker = TestBroker::start().await;
    let watched = Watched::new(&broker).await;
    let of_job = Trace::new();
    let own = NewJob::new("mail").traceparent(of_job.sampled());
    let jobs = [NewJob::new("mail"), NewJob::new("mail"), own];
    let ids: Vec<i64> = watched.client.enqueue_all(jobs).await.expect("enqueue").iter().map(|job| job.id).collect();
    let worker = watched.worker(async |_| ());
    for id in &ids {
        broker.until_state(*id, JobState::Succeeded).await;
    }
    worker.stop().await.expect("a good end");

    let send = watched.span("send mail");
    assert_eq!(send.span_kind, SpanKind::Client);
    assert_eq!(named(&send.attributes), expected(&broker, "send", "send", &[("messaging.batch.message_count", "3")]));
    let spans = watched.spans();
    let creates: Vec<&SpanData> = spans.iter().filter(|span| span.name == "create mail").collect();
    let of_spans = |span: &SpanData| (span.parent_span_id, span.span_kind.clone());
    assert!(creates.iter().all(|span| of_spans(span) == (send.span_context.span_id(), SpanKind::Producer)));
    for (create, id) in creates.iter().zip(&ids) {
        let id = id.to_string();
        let message = ("messaging.message.id", id.as_str());
        assert_eq!(named(&create.attributes), expected(&broker, "create", "create", &[message]));
        let process = spans.iter().find(|span| span.name == "process mail" && has(span, message)).expect("a handler");
        assert_eq!(process.parent_span_id, create.span_context.span_id());
    }
    let mut links: Vec<String> = send.links.iter().map(|link| link.span_context.span_id().to_string()).collect();
    let mut contexts: Vec<String> = creates.iter().map(|span| span.span_context.span_id().to_string()).collect();
    contexts.push(of_job.span.clone());
    links.sort();
    contexts.sort();
    assert_eq!(links, contexts, "the enqueue is linked with what went with the jobs");
    assert_eq!(creates.len(), 2, "the job with its context keeps it");
}

#[tokio::test]
async fn a_batch_of_several_types_is_sent_without_a_destination() {
    let broker = TestBroker::start().await;
    let watched = Watched::new(&broker).await;
    let jobs = ["mail", "other", "mail"].map(NewJob::new);
    watched.client.enqueue_all(jobs).await.expect("enqueue");
    let send = watched.span("send");
    assert!(!named(&send.attributes).contains_key("messaging.destination.name"));
    watched.span("create other");
    let mut sent = watched.metric("messaging.client.sent.messages");
    sent.sort_by_key(|(count, _)| *count);
    let by_type: Vec<_> =
        sent.iter().map(|(count, attributes)| (*count, attributes["messaging.destination.name"].as_str())).collect();
    assert_eq!(by_type, [(1, "other"), (2, "mail")]);
}

#[tokio::test]
async fn the_span_of_a_failed_handler_is_an_error_and_that_of_its_stored_nack_is_not() {
    let broker = TestBroker::start().await;
    let watched = Watched::new(&broker).await;
    let worker = watched.worker(async |job: Job| -> Result<Outcome, JobError> {
        match job.payload.as_ref() {
            b"retry" => Err(JobError::retry("no route")),
            b"fatal" => Err(JobError::fatal("no such address")),
            b"panic" => panic!("a bug"),
            _ if job.attempt > 1 => Ok(Outcome::ack("")),
            _ => Ok(Outcome::snooze(Duration::from_hours(1))),
        }
    });
    let enqueue = async |payload: &'static str, state| {
        let job = NewJob::new("mail").payload(payload).max_attempts(1);
        let id = watched.client.enqueue(job).await.expect("enqueue").id;
        broker.until_state(id, state).await;
        id
    };
    let failures = [
        ("retry", "retry", "no route"),
        ("fatal", "fatal", "no such address"),
        ("panic", "retry", "the handler panicked: a bug"),
    ];
    let mut ids = Vec::new();
    for (payload, ..) in failures {
        ids.push(enqueue(payload, JobState::Dead).await.to_string());
    }
    let snoozed = enqueue("", JobState::Scheduled).await.to_string();
    worker.stop().await.expect("a good end");

    let spans = watched.spans();
    let span_of = |id: &str, name: &str| {
        let found = spans.iter().find(|span| span.name == name && has(span, ("messaging.message.id", id)));
        found.unwrap_or_else(|| panic!("{name} of {id}: {spans:?}"))
    };
    for ((_, class, text), id) in failures.iter().zip(&ids) {
        let process = span_of(id, "process mail");
        assert_eq!(process.status, error(text));
        assert!(has(process, ("error.type", class)), "{process:?}");
        // The span of the nack has no error, because the outcome was stored although the handler failed.
        assert_eq!(span_of(id, "nack mail").status, Status::Unset);
    }
    assert_eq!(span_of(&snoozed, "process mail").status, Status::Unset);
    assert!(has(span_of(&snoozed, "snooze mail"), ("messaging.operation.name", "snooze")));
    let failed = watched.metric("messaging.process.duration");
    let failed = failed.iter().filter_map(|(count, attributes)| Some((attributes.get("error.type")?.as_str(), *count)));
    assert_eq!(failed.collect::<BTreeMap<_, _>>(), BTreeMap::from([("retry", 2), ("fatal", 1)]));
}

#[tokio::test]
async fn the_span_of_a_refused_enqueue_has_the_reason() {
    let broker = TestBroker::start().await;
    let watched = Watched::new(&broker).await;
    let refused = watched.client.enqueue(NewJob::new("mail").priority(-1_000_000)).await.expect_err("refused");
    let send = watched.span("send mail");
    assert_eq!(send.status, error(&refused.to_string()));
    let class = refused.reason().expect("a reason").to_owned();
    assert!(has(&send, ("error.type", &class)), "{send:?}");
    let attributes = expected(&broker, "send", "send", &[("error.type", &class)]);
    assert_eq!(watched.metric("messaging.client.operation.duration"), [(1, attributes.clone())]);
    let mut counted = attributes;
    counted.remove("messaging.operation.type");
    assert_eq!(watched.metric("messaging.client.sent.messages"), [(1, counted)]);
}

#[tokio::test]
async fn the_span_of_an_enqueue_without_a_broker_has_the_error_type() {
    let spans = InMemorySpanExporter::default();
    let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    let telemetry = Telemetry::global().tracer_provider(&tracers);
    let builder = Client::builder().endpoint("http://127.0.0.1:9").telemetry(telemetry);
    let client = builder.request_timeout(Duration::from_millis(100)).connect_lazy().expect("a client");
    let refused = client.enqueue(NewJob::new("mail")).await.expect_err("no broker listens");
    // On a slow machine, the call may time out before the connection is refused.
    let class = match refused.code() {
        Code::Unavailable => "UNAVAILABLE",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        other => panic!("{other:?}: {refused}"),
    };
    let spans = spans.get_finished_spans().expect("spans");
    assert!(has(&spans[0], ("error.type", class)), "{spans:?}");
}

#[tokio::test]
async fn jobs_with_a_request_key_or_their_own_trace_get_no_trace_context() {
    let broker = TestBroker::start().await;
    let watched = Watched::new(&broker).await;
    let of_job = Trace::new();
    let key = new_request_key();
    watched.client.enqueue_all_with_key([NewJob::new("mail")], &key).await.expect("enqueue");
    watched.client.enqueue_all_with_key([NewJob::new("mail")], &key).await.expect("the same request");
    let own = NewJob::new("mail").traceparent(of_job.sampled());
    watched.client.enqueue(own).await.expect("enqueue");
    let spans = watched.spans();
    assert!(spans.iter().all(|span| span.name == "send mail" && span.span_kind == SpanKind::Client), "{spans:?}");
    assert_eq!(spans[2].links[0].span_context.span_id().to_string(), of_job.span);
    let mut worker = broker.worker("mail").window(2).await;
    let contexts: Vec<String> = worker.take(2).await.into_iter().map(|job| job.traceparent).collect();
    assert_eq!(contexts, [String::new(), of_job.sampled()]);
}

#[tokio::test]
async fn a_linked_handler_begins_a_trace_of_its_own() {
    let broker = TestBroker::start().await;
    let watched = Watched::with(&broker, Sampler::AlwaysOn, Telemetry::linked).await;
    let worker = watched.worker(async |_| ());
    let id = watched.client.enqueue(NewJob::new("mail")).await.expect("enqueue").id;
    broker.until_state(id, JobState::Succeeded).await;
    worker.stop().await.expect("a good end");
    let [send, process, ack] = ["send mail", "process mail", "ack mail"].map(|name| watched.span(name).clone());
    assert_ne!(process.span_context.trace_id(), send.span_context.trace_id());
    assert_eq!(process.links[0].span_context.span_id(), send.span_context.span_id());
    assert_eq!(ack.parent_span_id, process.span_context.span_id());
}

#[tokio::test]
async fn of_jobs_that_are_not_sampled_only_metrics_are_made() {
    let broker = TestBroker::start().await;
    let watched = Watched::with(&broker, Sampler::AlwaysOff, |telemetry| telemetry).await;
    let worker = watched.worker(async |job: Job| job.traceparent);
    let jobs = [NewJob::new("mail"), NewJob::new("mail")];
    let ids: Vec<i64> = watched.client.enqueue_all(jobs).await.expect("enqueue").iter().map(|job| job.id).collect();
    let mut contexts = Vec::new();
    for id in ids {
        broker.until_state(id, JobState::Succeeded).await;
        let job = watched.client.get_job(id).await.expect("an answer").expect("the job");
        contexts.push(String::from_utf8(job.result.to_vec()).expect("text"));
    }
    worker.stop().await.expect("a good end");
    assert!(watched.spans().is_empty(), "{:?}", watched.spans());
    assert!(contexts[0].ends_with("-00") && contexts[0] == contexts[1], "{contexts:?}");
    let process = expected(&broker, "", "process", &[]);
    let process = process.into_iter().filter(|(name, _)| name != "messaging.operation.type").collect::<Attributes>();
    assert_eq!(watched.metric("messaging.client.consumed.messages"), [(2, process.clone())]);
    assert_eq!(watched.metric("messaging.process.duration"), [(2, process)]);
    let mut operations = watched.metric("messaging.client.operation.duration");
    operations.sort();
    let [send, ack] = [("send", "send"), ("settle", "ack")].map(|(kind, name)| expected(&broker, kind, name, &[]));
    assert_eq!(operations, [(1, send), (2, ack)]);
}

#[tokio::test]
async fn each_job_of_a_pipeline_has_a_span_with_its_own_answer() {
    let broker = TestBroker::start().await;
    let watched = Watched::new(&broker).await;
    let producer = watched.client.producer();
    let good = producer.submit(NewJob::new("mail")).await.expect("room");
    let bad = producer.submit(NewJob::new("mail").priority(-1_000_000)).await.expect("room");
    let id = good.await.expect("stored").id.to_string();
    let refused = bad.await.expect_err("refused");
    let spans = watched.spans();
    assert!(spans.iter().all(|span| span.name == "send mail" && span.span_kind == SpanKind::Producer), "{spans:?}");
    let stored = spans.iter().find(|span| span.status == Status::Unset).expect("the good one");
    let message = ("messaging.message.id", id.as_str());
    assert_eq!(named(&stored.attributes), expected(&broker, "send", "send", &[message]));
    let other = spans.iter().find(|span| span.status != Status::Unset).expect("the bad one");
    assert!(has(other, ("error.type", refused.reason().expect("a reason"))), "{other:?}");
    let sent = watched.metric("messaging.client.sent.messages");
    assert_eq!(sent.iter().map(|(count, _)| count).sum::<u64>(), 2);
}

/// A handler that runs until the test stops it.
struct Held {
    watched: Watched,
    worker: WorkerHandle,
    end: Arc<Notify>,
    id: i64,
}

impl Held {
    async fn new(broker: &TestBroker) -> Self {
        let watched = Watched::new(broker).await;
        let [began, end] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        let (begins, ends) = (began.clone(), end.clone());
        let worker = watched.worker(move |_| {
            let (begins, ends) = (begins.clone(), ends.clone());
            async move {
                begins.notify_one();
                ends.notified().await;
            }
        });
        let id = watched.client.enqueue(NewJob::new("mail")).await.expect("enqueue").id;
        with_timeout("a handler", began.notified()).await;
        Self { watched, worker, end, id }
    }

    async fn until(&self, span: &str) {
        let is_over = async || self.watched.spans().iter().any(|found| found.name == span);
        eventually(span, is_over).await;
    }
}

#[tokio::test]
async fn an_outcome_without_an_answer_is_an_error() {
    let broker = TestBroker::start().await;
    let held = Held::new(&broker).await;
    broker.stop().await;
    held.end.notify_one();
    held.until("process mail").await;
    held.worker.abort();
    let _ = held.worker.joined().await;
    let ack = held.watched.span("ack mail");
    assert!(has(&ack, ("error.type", "UNCONFIRMED")), "{ack:?}");
}

#[tokio::test]
async fn an_outcome_that_came_too_late_is_an_error() {
    let address = unused_address();
    let broker = TestBroker::start_with(|config| config.listen = address).await;
    let held = Held::new(&broker).await;
    let database = broker.database.clone();
    broker.stop().await;
    database.sql(&format!("SELECT howdah.cancel({})", held.id)).await;
    held.end.notify_one();
    held.until("process mail").await;
    let _again = TestBroker::on_with(&database, |config| config.listen = address).await;
    held.until("ack mail").await;
    let ack = held.watched.span("ack mail");
    assert!(has(&ack, ("error.type", "LEASE_LOST")), "{ack:?}");
    assert_eq!(ack.status, error("the lease was lost before the outcome arrived"));
    held.worker.stop().await.expect("a good end");
}
