//! Telemetry of an attempt: the handler until it ends, and then the outcome until the broker confirms it.

use std::{
    future::Future,
    sync::Arc,
    time::{Instant, SystemTime},
};

use futures::future::Either;
use howdah_proto::v1::{SettleResult, SettleStatus, outcome::Outcome as End};
use opentelemetry::{
    Context, KeyValue,
    trace::{FutureExt as _, Link, SpanKind, TraceContextExt as _, Tracer as _},
};

use crate::{Job, Outcome};

use super::{
    Telemetry,
    operation::{Address, Failure, Operation, id, read},
};

/// Telemetry of a running handler, and then of its outcome until the broker confirms it. Dropping it ends the handler's span.
#[derive(Debug)]
pub(crate) struct Attempt(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    telemetry: Telemetry,
    /// Context with the handler's span.
    context: Option<Context>,
    task_type: Arc<str>,
    id: i64,
    attempt: u32,
    broker: Address,
    /// `since` and `at` are the start of the handler, or of settling its outcome. `since` is for durations, `at` for the
    /// span.
    since: Instant,
    at: SystemTime,
}

impl Telemetry {
    /// Starts the telemetry of a handler.
    pub(crate) fn attempt(&self, job: &Job, broker: &Address) -> Attempt {
        if self.is_off() {
            return Attempt(None);
        }
        let mut open = Open {
            telemetry: self.clone(),
            context: None,
            task_type: job.task_type.as_str().into(),
            id: job.id,
            attempt: job.attempt,
            broker: broker.clone(),
            since: Instant::now(),
            at: SystemTime::now(),
        };
        let process = Operation::new("process", "process", &open.task_type);
        if let Some(tracer) = &self.tracer {
            let creation = read(&job.traceparent, &job.tracestate);
            let parent = creation.clone().filter(|_| !self.linked);
            let parent = parent.map_or_else(Context::new, |of| Context::new().with_remote_span_context(of));
            let links = creation.into_iter().map(Link::with_context).collect();
            let span = process.span(SpanKind::Consumer, open.attributes(broker)).with_links(links);
            open.context = Some(parent.with_span(tracer.build_with_context(span, &parent)));
        }
        if let Some(meters) = &self.meters {
            meters.consumed.add(1, &process.labels(Some(broker), None)[1..]);
        }
        Attempt(Some(Box::new(open)))
    }
}

impl Attempt {
    /// Runs the handler in the context of its span.
    pub(crate) fn within<F: Future>(&self, handler: F) -> impl Future<Output = F::Output> + use<F> {
        match self.0.as_ref().and_then(|open| open.context.clone()) {
            Some(context) => Either::Left(handler.with_context(context)),
            None => Either::Right(handler),
        }
    }

    /// Telemetry that records nothing, for a job whose handler did not run to its end.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Records the end of the handler, and starts the telemetry of settling its outcome.
    pub(crate) fn handled(&mut self, outcome: &Outcome) {
        let Some(open) = &mut self.0 else {
            return;
        };
        let failure = match outcome {
            Outcome::Retry { error, .. } => Some(Failure::new("retry", error)),
            Outcome::Fail { error, .. } => Some(Failure::new("fatal", error)),
            _ => None,
        };
        // If the handler's span is not sampled, the outcome gets no span either.
        open.context = open.context.take().filter(|context| context.span().is_recording());
        if let Some(context) = &open.context {
            failure.iter().for_each(|failure| failure.note(context));
            context.span().end();
        }
        if let Some(meters) = &open.telemetry.meters {
            let process = Operation::new("process", "process", &open.task_type);
            let labels = process.labels(Some(&open.broker), failure.as_ref());
            meters.process.record(open.since.elapsed().as_secs_f64(), &labels[1..]);
        }
        (open.since, open.at) = (Instant::now(), SystemTime::now());
    }

    /// Records how the settling of the outcome ended: with the broker's result, or as unconfirmed without a result.
    pub(crate) fn settled(&mut self, outcome: &End, answer: Option<&SettleResult>, broker: &Address) {
        let Some(open) = self.0.take() else {
            return;
        };
        let failure = match answer.map(|result| (result.status(), &result.message)) {
            Some((SettleStatus::Ok, _)) => None,
            Some((SettleStatus::Invalid, message)) => Some(Failure::new("INVALID", message)),
            Some(_) => Some(Failure::new("LEASE_LOST", "the lease was lost before the outcome arrived")),
            None => Some(Failure::new("UNCONFIRMED", "the worker ended before the broker confirmed the outcome")),
        };
        let settle = Operation::new(name(outcome), "settle", &open.task_type);
        if let (Some(tracer), Some(parent)) = (&open.telemetry.tracer, &open.context) {
            let span = settle.span(SpanKind::Client, open.attributes(broker)).with_start_time(open.at);
            let context = parent.with_span(tracer.build_with_context(span, parent));
            failure.iter().for_each(|failure| failure.note(&context));
            context.span().end();
        }
        if let Some(meters) = &open.telemetry.meters {
            let labels = settle.labels(Some(broker), failure.as_ref());
            meters.operation.record(open.since.elapsed().as_secs_f64(), &labels);
        }
    }
}

impl Open {
    fn attributes(&self, broker: &Address) -> Vec<KeyValue> {
        let mut attributes = vec![id(self.id), KeyValue::new("howdah.attempt", i64::from(self.attempt))];
        attributes.extend(broker.attributes());
        attributes
    }
}

/// Returns the operation name of an outcome in telemetry, such as `ack`.
const fn name(outcome: &End) -> &'static str {
    match outcome {
        End::Ack(_) => "ack",
        End::Nack(_) => "nack",
        End::Snooze(_) => "snooze",
        End::Release(_) => "release",
    }
}
