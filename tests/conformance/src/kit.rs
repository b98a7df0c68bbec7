//! Support for adapters in Rust: reads commands from standard input, writes answers to standard output, and records spans.

use std::{collections::HashMap, future::Future, io::Write as _, sync::mpsc};

use opentelemetry::{Context, global, propagation::TextMapPropagator as _};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{InMemorySpanExporter, SdkTracerProvider, SpanData},
};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

/// Writes a whole line to standard output and flushes it.
pub fn write(line: &Value) {
    let mut out = std::io::stdout().lock();
    // Ignore a failed write: the runner has ended, so standard input ends too and the adapter stops.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Runs commands concurrently until standard input ends.
pub async fn serve<F: Future<Output = Result<Value, Value>> + Send + 'static>(handle: impl Fn(Value) -> F) {
    let (out, answers) = mpsc::channel::<Value>();
    std::thread::spawn(move || answers.iter().for_each(|answer| write(&answer)));
    let mut commands = BufReader::new(stdin()).lines();
    while let Ok(Some(line)) = commands.next_line().await {
        let command: Value = serde_json::from_str(&line).unwrap_or_default();
        let (id, out, work) = (command["id"].clone(), out.clone(), handle(command));
        tokio::spawn(async move {
            let _ = out.send(match work.await {
                Ok(ok) => json!({"id": id, "ok": ok}),
                Err(error) => json!({"id": id, "error": error}),
            });
        });
    }
}

/// Trace spans of this process, recorded in memory.
#[derive(Clone, Debug)]
pub struct Spans(InMemorySpanExporter);

impl Spans {
    /// Starts to record the trace spans of this process.
    pub fn keep() -> Self {
        let spans = InMemorySpanExporter::default();
        global::set_tracer_provider(SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build());
        Self(spans)
    }

    /// Returns the spans that ended since the last call, as the answer to the adapter command `spans`.
    pub fn take(&self) -> Value {
        let spans = self.0.get_finished_spans().unwrap_or_default();
        self.0.reset();
        json!({"spans": spans.iter().map(span).collect::<Vec<_>>()})
    }
}

/// Returns the current trace context as a `traceparent` header; `None` without a span.
pub fn current_trace() -> Option<String> {
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&Context::current(), &mut carrier);
    carrier.remove("traceparent")
}

/// Parses the trace context of a `traceparent` header. Returns the current context if the text is not valid.
pub fn remote_trace(traceparent: &str) -> Context {
    let carrier = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    TraceContextPropagator::new().extract(&carrier)
}

fn span(of: &SpanData) -> Value {
    let word = |debug: String| debug.split(' ').next().unwrap_or_default().to_lowercase();
    let attributes = of.attributes.iter().map(|one| match &one.value {
        opentelemetry::Value::I64(number) => (one.key.to_string(), json!(number)),
        other => (one.key.to_string(), json!(other.to_string())),
    });
    let links = of.links.iter().map(|link| {
        let of = &link.span_context;
        json!({"trace_id": of.trace_id().to_string(), "span_id": of.span_id().to_string()})
    });
    json!({
        "name": of.name,
        "kind": word(format!("{:?}", of.span_kind)),
        "status": word(format!("{:?}", of.status)),
        "trace_id": of.span_context.trace_id().to_string(),
        "span_id": of.span_context.span_id().to_string(),
        "parent_id": of.parent_span_id.to_string(),
        "attributes": attributes.collect::<Map<_, _>>(),
        "links": links.collect::<Vec<_>>(),
    })
}
