//! Telemetry of an enqueue, or of a submission to a producer, until its response.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use howdah_proto::v1::NewJob;
use opentelemetry::{
    Context, KeyValue,
    trace::{SpanKind, TraceContextExt as _, Tracer as _},
};

use crate::{Enqueued, Result};

use super::{
    Telemetry,
    operation::{Address, Failure, Operation, has_context, id, read, set_context},
};

/// Telemetry of an enqueue until its response. Dropping it without a response ends its spans.
#[derive(Debug)]
pub(crate) struct Sending(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    telemetry: Telemetry,
    /// Context with the span `send`; empty if spans are not recorded.
    context: Context,
    /// Contexts with a span `create`, each with the index of the span's job.
    created: Vec<(usize, Context)>,
    /// Number of jobs of each type.
    types: Vec<(Arc<str>, u64)>,
    is_single: bool,
    since: Instant,
    /// The broker to which the jobs were sent last; `None` if they were not sent.
    broker: Option<Address>,
}

impl Telemetry {
    /// Starts the telemetry of an enqueue, before its jobs are sent. Sets a trace context on jobs without one, unless the
    /// request is `fixed`: with the caller's key, it must be identical when it is repeated.
    pub(crate) fn send(&self, jobs: &mut [NewJob], fixed: bool) -> Sending {
        if self.is_off() || jobs.is_empty() {
            return Sending(None);
        }
        let mut open = Open {
            telemetry: self.clone(),
            context: Context::new(),
            created: Vec::new(),
            types: types(jobs),
            is_single: jobs.len() == 1,
            since: Instant::now(),
            broker: None,
        };
        if let Some(tracer) = &self.tracer {
            let creates = open.is_single && !fixed && !has_context(&jobs[0]);
            let kind = if creates { SpanKind::Producer } else { SpanKind::Client };
            let count = (!open.is_single).then(|| KeyValue::new("messaging.batch.message_count", jobs.len() as i64));
            let parent = Context::current();
            let span = tracer.build_with_context(open.operation().span(kind, count), &parent);
            open.context = parent.with_span(span);
            open.set_contexts(jobs, fixed);
        }
        Sending(Some(Box::new(open)))
    }
}

impl Open {
    fn operation(&self) -> Operation {
        let mut types = self.types.iter();
        let first = types.next().map(|(name, _)| name.clone());
        Operation { name: "send", kind: "send", task_type: first.filter(|_| types.next().is_none()) }
    }

    fn set_contexts(&mut self, jobs: &mut [NewJob], fixed: bool) {
        let context = self.context.clone();
        let send = context.span();
        for (number, job) in jobs.iter_mut().enumerate() {
            if !send.is_recording() {
                // If the span `send` is not sampled, all jobs get its context, and there are no spans `create`.
                if !fixed {
                    set_context(send.span_context(), job);
                }
            } else if has_context(job) {
                let given = read(&job.traceparent, &job.tracestate);
                given.into_iter().for_each(|given| send.add_link(given, Vec::new()));
            } else if fixed {
                // The job stays unchanged, because a request with the caller's key must be identical when it is repeated.
            } else if self.is_single {
                set_context(send.span_context(), job);
            } else {
                self.create(number, job);
            }
        }
    }

    /// Creates a span `create` for one of several jobs, and sets its context on the job.
    fn create(&mut self, number: usize, job: &mut NewJob) {
        let (Some(tracer), Some(task_type)) = (&self.telemetry.tracer, self.task_type(&job.task_type)) else {
            return;
        };
        let span = Operation::new("create", "create", task_type).span(SpanKind::Producer, None);
        let context = self.context.with_span(tracer.build_with_context(span, &self.context));
        set_context(context.span().span_context(), job);
        self.context.span().add_link(context.span().span_context().clone(), Vec::new());
        self.created.push((number, context));
    }

    fn task_type(&self, name: &str) -> Option<&Arc<str>> {
        let found = self.types.binary_search_by(|(other, _)| (**other).cmp(name));
        found.ok().map(|position| &self.types[position].0)
    }

    fn ended(self, answer: &Result<Vec<Enqueued>>) {
        let failure = answer.as_ref().err().map(Failure::from_error);
        let answers = answer.as_ref().map(Vec::as_slice).unwrap_or_default();
        let took = self.since.elapsed().as_secs_f64();
        self.end_spans(answers, failure.as_ref());
        if let Some(meters) = &self.telemetry.meters {
            let labels = self.operation().labels(self.broker.as_ref(), failure.as_ref());
            meters.operation.record(took, &labels);
            // If no broker is set, the jobs were not sent, so they are not counted.
            for (task_type, jobs) in self.types.iter().filter(|_| self.broker.is_some()) {
                let of_type = Operation::new("send", "send", task_type);
                meters.sent.add(*jobs, &of_type.labels(self.broker.as_ref(), failure.as_ref())[1..]);
            }
        }
    }

    fn end_spans(&self, answers: &[Enqueued], failure: Option<&Failure>) {
        let end = |context: &Context, job: Option<&Enqueued>| {
            let span = context.span();
            if span.is_recording() {
                span.set_attributes(job.map(|job| id(job.id)));
                span.set_attributes(self.broker.iter().flat_map(Address::attributes));
            }
            span.end();
        };
        for (number, context) in &self.created {
            end(context, answers.get(*number));
        }
        if let Some(failure) = failure {
            failure.note(&self.context);
        }
        end(&self.context, answers.first().filter(|_| self.is_single));
    }
}

impl Sending {
    /// Records the broker to which the jobs are sent, or sent again.
    pub(crate) fn at(&mut self, broker: &Address) {
        if let Some(open) = &mut self.0 {
            open.broker = Some(broker.clone());
        }
    }

    /// Ends the spans of the enqueue with its response. Later calls have no effect.
    pub(crate) fn ended(&mut self, answer: &Result<Vec<Enqueued>>) {
        if let Some(open) = self.0.take() {
            open.ended(answer);
        }
    }
}

/// Number of jobs of each type, ordered by name.
fn types(jobs: &[NewJob]) -> Vec<(Arc<str>, u64)> {
    if let [job] = jobs {
        return vec![(job.task_type.as_str().into(), 1)];
    }
    let mut count: BTreeMap<&str, u64> = BTreeMap::new();
    for job in jobs {
        *count.entry(&job.task_type).or_default() += 1;
    }
    count.into_iter().map(|(name, jobs)| (name.into(), jobs)).collect()
}
