//! The W3C trace context of a job.

use std::str::FromStr as _;

use howdah_proto::v1::NewJob;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

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
