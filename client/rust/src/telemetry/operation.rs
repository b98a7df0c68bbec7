//! Attributes of spans and metrics, and the W3C trace context of a job.

use std::{borrow::Cow, str::FromStr as _, sync::Arc};

use howdah_proto::v1::NewJob;
use opentelemetry::{
    Context, KeyValue,
    trace::{
        SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    },
};
use tonic::codegen::http::Uri;

use crate::Error;

/// Maximum length of an error text on a span, in bytes.
const LONGEST_ERROR: usize = 1 << 10;

/// Host and port of a broker.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    host: Arc<str>,
    port: u16,
}

impl Address {
    pub(crate) fn from_uri(uri: &Uri) -> Self {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        Self { host: host.into(), port: uri.port_u16().unwrap_or(default) }
    }

    pub(super) fn attributes(&self) -> [KeyValue; 2] {
        [KeyValue::new("server.address", self.host.clone()), KeyValue::new("server.port", i64::from(self.port))]
    }
}

/// An operation on jobs of one type, or of several.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// The attribute `messaging.operation.type`: `create`, `send`, `process` or `settle`.
    pub(super) kind: &'static str,
    /// `None` if the operation concerns jobs of several types.
    pub(super) task_type: Option<Arc<str>>,
}

impl Operation {
    pub(super) fn new(name: &'static str, kind: &'static str, task_type: &Arc<str>) -> Self {
        Self { name, kind, task_type: Some(task_type.clone()) }
    }

    pub(super) fn span(&self, kind: SpanKind, more: impl IntoIterator<Item = KeyValue>) -> SpanBuilder {
        let name = match &self.task_type {
            Some(task_type) => Cow::Owned(format!("{} {task_type}", self.name)),
            None => Cow::Borrowed(self.name),
        };
        let mut attributes = self.attributes();
        attributes.extend(more);
        SpanBuilder::from_name(name).with_kind(kind).with_attributes(attributes)
    }

    /// Returns the labels of a metric. The first label is `messaging.operation.type`, which counters omit.
    pub(super) fn labels(&self, broker: Option<&Address>, failure: Option<&Failure>) -> Vec<KeyValue> {
        let mut labels = self.attributes();
        labels.extend(broker.into_iter().flat_map(Address::attributes));
        labels.extend(failure.map(Failure::attribute));
        labels
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let mut attributes = Vec::with_capacity(9);
        attributes.push(KeyValue::new("messaging.operation.type", self.kind));
        attributes.push(KeyValue::new("messaging.operation.name", self.name));
        attributes.push(KeyValue::new("messaging.system", "howdah"));
        attributes.extend(self.task_type.clone().map(|name| KeyValue::new("messaging.destination.name", name)));
        attributes
    }
}

/// The id of a job as an attribute.
pub(super) fn id(of: i64) -> KeyValue {
    KeyValue::new("messaging.message.id", of.to_string())
}

/// A failure of an operation: its class for the attribute `error.type`, and its text.
pub(super) struct Failure {
    class: Cow<'static, str>,
    text: String,
}

impl Failure {
    pub(super) fn new(class: &'static str, text: &str) -> Self {
        Self { class: Cow::Borrowed(class), text: text[..text.floor_char_boundary(LONGEST_ERROR)].to_owned() }
    }

    /// The class of the failure is the broker's reason, or else the gRPC code, as the specification of gRPC writes it.
    pub(super) fn from_error(error: &Error) -> Self {
        let mut code = String::new();
        for letter in format!("{:?}", error.code()).chars() {
            if letter.is_uppercase() && !code.is_empty() {
                code.push('_');
            }
            code.push(letter.to_ascii_uppercase());
        }
        let class = error.reason().map_or(code, str::to_owned);
        Self { class: Cow::Owned(class), ..Self::new("", &error.to_string()) }
    }

    fn attribute(&self) -> KeyValue {
        KeyValue::new("error.type", self.class.clone())
    }

    /// Records the failure on the span of the context.
    pub(super) fn note(&self, context: &Context) {
        context.span().set_attribute(self.attribute());
        context.span().set_status(Status::error(self.text.clone()));
    }
}

/// Parses a job's `traceparent` and `tracestate`.
pub(super) fn read(traceparent: &str, tracestate: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let trace_id = TraceId::from_hex(parts.next()?).ok()?;
    let span_id = SpanId::from_hex(parts.next()?).ok()?;
    let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
    let state = TraceState::from_str(tracestate).unwrap_or_default();
    let context = SpanContext::new(trace_id, span_id, TraceFlags::new(flags), true, state);
    context.is_valid().then_some(context)
}

/// Sets the job's `traceparent` and `tracestate`, unless the job already has a `traceparent`.
pub(super) fn set_context(context: &SpanContext, job: &mut NewJob) {
    if context.is_valid() && !has_context(job) {
        job.traceparent =
            format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8());
        job.tracestate = context.trace_state().header();
    }
}

pub(super) fn has_context(job: &NewJob) -> bool {
    !job.traceparent.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_an_error_is_the_reason_of_the_broker_or_the_name_of_the_code() {
        let class = |error| Failure::from_error(&error).class;
        assert_eq!(class(Error::refused("payload", "is too large")), "INVALID_ARGUMENT");
        assert_eq!(class(Error::broken("the broker closed the stream")), "UNAVAILABLE");
        let error = howdah_proto::v1::RequestError { reason: "BACKLOG_FULL".to_owned(), ..Default::default() };
        assert_eq!(class(Error::from_request(error)), "BACKLOG_FULL");
    }
}
