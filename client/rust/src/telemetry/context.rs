//! The trace context of a job, as W3C writes it.

use std::str::FromStr as _;

use howdah_proto::v1::NewJob;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The context in a job's `traceparent` and `tracestate`.
pub(super) fn read(traceparent: &str, tracestate: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let trace_id = TraceId::from_hex(parts.next()?).ok()?;
    let span_id = SpanId::from_hex(parts.next()?).ok()?;
    let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
    let state = TraceState::from_str(tracestate).unwrap_or_default();
    let of = SpanContext::new(trace_id, span_id, TraceFlags::new(flags), true, state);
    of.is_valid().then_some(of)
}

/// Gives a context to a job that has none.
pub(super) fn give(of: &SpanContext, job: &mut NewJob) {
    if of.is_valid() && !has_own(job) {
        job.traceparent = format!("00-{}-{}-{:02x}", of.trace_id(), of.span_id(), of.trace_flags().to_u8());
        job.tracestate = of.trace_state().header();
    }
}

pub(super) fn has_own(job: &NewJob) -> bool {
    !job.traceparent.is_empty()
}
