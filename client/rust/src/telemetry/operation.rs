//! Attributes of spans and metrics.

use std::{borrow::Cow, sync::Arc};

use opentelemetry::{
    Context, KeyValue,
    trace::{SpanBuilder, SpanKind, Status, TraceContextExt as _},
};
use tonic::{Code, codegen::http::Uri};

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

    /// The class of the failure is the broker's reason, or else the gRPC code.
    pub(super) fn from_error(error: &Error) -> Self {
        let known = Self::new(name(error.code()), &error.to_string());
        match error.reason() {
            Some(reason) => Self { class: Cow::Owned(reason.to_owned()), ..known },
            None => known,
        }
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

/// Returns the name of a gRPC code, as the specification of gRPC writes it.
const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
