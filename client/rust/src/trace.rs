//! Traces, by the conventions of OpenTelemetry for messaging. Without the feature `opentelemetry` all of this is nothing.
//!
//! An enqueue is a span of kind producer, whose context goes with its jobs as their `traceparent`. An attempt is a span of
//! kind consumer in that trace, current while the handler runs. They come from the program's global tracer provider.

#[cfg(not(feature = "opentelemetry"))]
pub(crate) use self::nothing::{attempt, enqueue};
#[cfg(feature = "opentelemetry")]
pub(crate) use self::spans::{attempt, enqueue};

#[cfg(not(feature = "opentelemetry"))]
mod nothing {
    use std::future::Future;

    use howdah_proto::v1 as proto;

    use crate::{Job, Outcome, Result};

    pub(crate) fn enqueue<T>(_: &mut [proto::NewJob]) -> impl FnOnce(&Result<T>) + use<T> {
        |_| {}
    }

    pub(crate) fn attempt<F: Future<Output = Outcome>>(_: &Job, handler: impl FnOnce() -> F) -> F {
        handler()
    }
}

#[cfg(feature = "opentelemetry")]
mod spans {
    use std::{fmt::Display, future::Future, str::FromStr as _};

    use howdah_proto::v1 as proto;
    use opentelemetry::{
        Context, KeyValue, global,
        trace::{
            FutureExt as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags,
            TraceId, TraceState, Tracer as _,
        },
    };

    use crate::{Job, Outcome, Result};

    /// Starts a span for an enqueue, and gives its context to the jobs that have none. Ends with the answer.
    pub(crate) fn enqueue<T>(jobs: &mut [proto::NewJob]) -> impl FnOnce(&Result<T>) + use<T> {
        let task_type = jobs.first().map(|job| job.task_type.clone()).unwrap_or_default();
        let mut more = vec![];
        if jobs.len() > 1 {
            more.push(KeyValue::new("messaging.batch.message_count", jobs.len() as i64));
        }
        let context = start(SpanKind::Producer, "send", &task_type, more, &Context::current());
        let of = context.span().span_context().clone();
        if of.is_valid() {
            for job in jobs.iter_mut().filter(|job| job.traceparent.is_empty()) {
                job.traceparent = format!("00-{}-{}-{:02x}", of.trace_id(), of.span_id(), of.trace_flags().to_u8());
                job.tracestate = of.trace_state().header();
            }
        }
        move |answer| {
            if let Err(error) = answer {
                failed(&context, error);
            }
            context.span().end();
        }
    }

    /// Runs a handler within the trace of its job.
    pub(crate) fn attempt<F: Future<Output = Outcome>, H: FnOnce() -> F>(
        job: &Job,
        handler: H,
    ) -> impl Future<Output = Outcome> + use<F, H> {
        let parent = remote(&job.traceparent, &job.tracestate);
        let parent = parent.map_or_else(Context::new, |of| Context::new().with_remote_span_context(of));
        let id = KeyValue::new("messaging.message.id", job.id.to_string());
        let attempt = KeyValue::new("howdah.attempt", i64::from(job.attempt));
        let context = start(SpanKind::Consumer, "process", &job.task_type, vec![id, attempt], &parent);
        let run = {
            let _current = context.clone().attach();
            handler()
        };
        let within = context.clone();
        async move {
            let outcome = run.with_context(within).await;
            if let Outcome::Retry { error, .. } | Outcome::Fail { error } = &outcome {
                failed(&context, error);
            }
            context.span().end();
            outcome
        }
    }

    fn start(
        kind: SpanKind,
        operation: &'static str,
        task_type: &str,
        more: Vec<KeyValue>,
        parent: &Context,
    ) -> Context {
        let mut attributes = vec![
            KeyValue::new("messaging.system", "howdah"),
            KeyValue::new("messaging.operation.type", operation),
            KeyValue::new("messaging.operation.name", operation),
            KeyValue::new("messaging.destination.name", task_type.to_owned()),
        ];
        attributes.extend(more);
        let span =
            SpanBuilder::from_name(format!("{operation} {task_type}")).with_kind(kind).with_attributes(attributes);
        parent.with_span(global::tracer("howdah-client").build_with_context(span, parent))
    }

    fn failed(context: &Context, error: &impl Display) {
        context.span().set_status(Status::error(error.to_string()));
    }

    /// The context in a W3C `traceparent`.
    fn remote(traceparent: &str, tracestate: &str) -> Option<SpanContext> {
        let mut parts = traceparent.split('-').skip(1);
        let trace_id = TraceId::from_hex(parts.next()?).ok()?;
        let span_id = SpanId::from_hex(parts.next()?).ok()?;
        let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
        let state = TraceState::from_str(tracestate).unwrap_or_default();
        let of = SpanContext::new(trace_id, span_id, TraceFlags::new(flags), true, state);
        of.is_valid().then_some(of)
    }
}
