//! Builds spans according to the OpenTelemetry conventions for messaging.

use std::{borrow::Cow, time::SystemTime};

use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::{attempts::Attempt, traced};
use crate::metrics::Traced;

/// Maximum length of an error in a span, in bytes.
const ERROR_BYTES: usize = 1_024;

/// The way in which an attempt ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Value of the span attribute `howdah.outcome`.
    outcome: &'static str,
    /// Error text of a failed attempt; `None` if the attempt has not failed.
    error: Option<String>,
}

impl Ending {
    /// Describes the end of an attempt that has not failed.
    pub(crate) const fn new(outcome: &'static str) -> Self {
        Self { outcome, error: None }
    }

    /// Describes the end of a failed attempt.
    pub(crate) fn failed(outcome: &'static str, error: &str) -> Self {
        let mut end = error.len().min(ERROR_BYTES);
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        Self { outcome, error: Some(error[..end].to_owned()) }
    }
}

impl Attempt {
    /// Labels for exemplars.
    pub(super) fn trace(&self) -> Traced {
        traced(self.creation.trace_id, self.span_id)
    }

    /// Returns a span for the creation of a job whose producer made no trace.
    pub(super) fn create_span(&self, at: SystemTime) -> SpanData {
        let mut span = self.base("create", "create", self.creation.span_id, (at, at));
        span.parent_span_id = SpanId::INVALID;
        span.parent_span_is_remote = false;
        span.span_kind = SpanKind::Producer;
        span
    }

    /// Returns the span of the wait: from the time at which the job was due until the attempt.
    pub(super) fn wait_span(&self, due: SystemTime) -> SpanData {
        let mut span = self.base("wait", "receive", super::new_span_id(), (due.min(self.started), self.started));
        span.attributes.push(KeyValue::new("howdah.attempt", i64::from(self.number)));
        span
    }

    /// Returns the span of the attempt, which ends now.
    pub(super) fn span(self, ending: Ending) -> SpanData {
        // The start time comes from the database's clock. This machine's clock may differ, so it is only used for the
        // duration.
        let ended = self.started + self.since.elapsed();
        let mut span = self.base("attempt", "process", self.span_id, (self.started, ended));
        span.attributes.push(KeyValue::new("howdah.attempt", i64::from(self.number)));
        span.attributes.push(KeyValue::new("howdah.outcome", ending.outcome));
        if let Some(error) = ending.error {
            span.attributes.push(KeyValue::new("error.type", ending.outcome));
            span.status = Status::Error { description: error.into() };
        }
        span
    }

    fn base(
        &self,
        name: &'static str,
        kind_of_operation: &'static str,
        span_id: SpanId,
        (start_time, end_time): (SystemTime, SystemTime),
    ) -> SpanData {
        let state: TraceState = self.creation.state.clone();
        SpanData {
            span_context: SpanContext::new(self.creation.trace_id, span_id, TraceFlags::SAMPLED, false, state),
            parent_span_id: self.creation.span_id,
            parent_span_is_remote: true,
            span_kind: SpanKind::Internal,
            name: Cow::Owned(format!("{name} {}", self.task_type)),
            start_time,
            end_time,
            attributes: vec![
                KeyValue::new("messaging.system", "howdah"),
                KeyValue::new("messaging.operation.name", name),
                KeyValue::new("messaging.operation.type", kind_of_operation),
                KeyValue::new("messaging.destination.name", self.task_type.clone()),
                KeyValue::new("messaging.message.id", self.job.to_string()),
            ],
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("howdah")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }
}
