//! Spans of sampled jobs, for an OpenTelemetry collector.
//!
//! Each attempt has two spans: `wait`, from the time at which the job was due until a worker got it, and `attempt`,
//! from then until it was settled. Both spans are children of the context in which the job was created. So attempts
//! appear in the trace of their job even if the worker does not use OpenTelemetry. If the worker resumes its session
//! at another broker during an attempt, each of the two brokers records a span.
//!
//! Without an endpoint, tracing costs one comparison per batch of jobs. A job that is not sampled costs no allocation.

mod attempts; // attempts in progress
mod context; // W3C trace contexts, and sampling
mod export; // the queue, and the task that exports it
mod span; // attributes and times
mod target; // the collector: address, certificates, headers

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_core::job::{Lease, LeasedJob};
use opentelemetry::trace::{SpanId, TraceId};

use crate::{
    metrics::{TraceMetrics, Traced},
    registry::Registry,
    store::AdoptedAttempt,
};
pub use attempts::MOST_OPEN;
use attempts::{Attempt, OpenAttempts, TooMany};
use context::Sampler;
pub use context::is_trace_context;
pub use export::QUEUE;
use export::{Exporter, Queue};
pub(crate) use span::Ending;
pub use target::Collector;

/// Time after its deadline at which an attempt of a pulled job is closed here. Its lease may have been extended or
/// settled at another broker, and this broker does not learn of that.
const UNKNOWN_AFTER: Duration = Duration::from_mins(5);

/// Creates and exports spans, if a collector is configured. Clones share all state.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<Tracer>>);

struct Tracer {
    sampler: Sampler,
    registry: Arc<Registry>,
    open: OpenAttempts,
    queue: Queue,
    exporter: Exporter,
}

impl Traces {
    /// Starts the export; creates no spans without a collector.
    pub(crate) fn start(
        collector: Option<Collector>,
        sample_ratio: f64,
        database_id: &str,
        registry: &Arc<Registry>,
        metrics: &TraceMetrics,
    ) -> Self {
        Self(collector.map(|collector| {
            let (queue, exporter) = export::start(collector.0, metrics.clone());
            let sampler = Sampler::new(sample_ratio, database_id);
            Arc::new(Tracer { sampler, registry: registry.clone(), open: OpenAttempts::default(), queue, exporter })
        }))
    }

    /// Records jobs that are sent to workers. Gives a sampled job without a trace context a new one. Returns the
    /// sampled jobs by index.
    pub(crate) fn leased(&self, jobs: &mut [LeasedJob], is_pulled: bool) -> Vec<(usize, Traced)> {
        self.0.as_ref().map(|tracer| tracer.leased(jobs, is_pulled)).unwrap_or_default()
    }

    /// Whether no sampled attempt is in progress, so that ended attempts need not be reported.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.as_ref().is_none_or(|tracer| tracer.open.is_empty())
    }

    /// Records the end of attempts. Returns the trace of one of them, for use as an exemplar. Ignores attempts that are
    /// not sampled or have already ended.
    pub(crate) fn ended<T>(
        &self,
        attempts: impl Iterator<Item = (Lease, T)>,
        ending: impl Fn(T) -> Ending,
    ) -> Option<Traced> {
        let tracer = self.0.as_ref().filter(|tracer| !tracer.open.is_empty())?;
        let mut trace = None;
        for (attempt, how) in tracer.open.take(attempts) {
            trace = Some(attempt.trace());
            tracer.queue.push(attempt.span(ending(how)));
        }
        trace
    }

    /// Records that these attempts continue at another broker. Ignores attempts that have come back to this broker
    /// after `before`.
    pub(crate) fn moved(&self, leases: impl Iterator<Item = Lease>, before: Instant) {
        if let Some(tracer) = self.0.as_ref().filter(|tracer| !tracer.open.is_empty()) {
            for attempt in tracer.open.take_older(leases, before) {
                tracer.queue.push(attempt.span(Ending::new("moved")));
            }
        }
    }

    /// Records that these attempts of another broker continue at this one. Each gets a span for its remaining time.
    pub(crate) fn adopted(&self, attempts: impl Iterator<Item = AdoptedAttempt>) {
        if let Some(tracer) = &self.0 {
            attempts.for_each(|attempt| tracer.adopted(&attempt));
        }
    }

    /// Records the new deadlines of these leases.
    pub(crate) fn extended(&self, leases: &[(Lease, Duration)]) {
        if let Some(tracer) = self.0.as_ref().filter(|tracer| !tracer.open.is_empty()) {
            let until = |(lease, duration): &(Lease, Duration)| (*lease, Instant::now() + *duration + UNKNOWN_AFTER);
            tracer.open.extend(leases.iter().map(until));
        }
    }

    /// Ends the open attempts, whose workers continue at other brokers. Exports the remaining spans within this time.
    pub(crate) async fn stop(&self, within: Duration) {
        if let Some(tracer) = &self.0 {
            for attempt in tracer.open.take_all() {
                tracer.queue.push(attempt.span(Ending::new("moved")));
            }
            tracer.exporter.stop(within).await;
        }
    }
}

impl Tracer {
    fn leased(&self, jobs: &mut [LeasedJob], is_pulled: bool) -> Vec<(usize, Traced)> {
        let mut sampled = Vec::new();
        for (index, job) in jobs.iter_mut().enumerate() {
            let Some((creation, is_ours)) = self.sampler.creation_of(job) else { continue };
            let task_type = self.registry.name(job.type_id).map(|name| name.to_string()).unwrap_or_default();
            let now = Instant::now();
            let until = job.deadline_in_ms.filter(|_| is_pulled);
            let attempt = Attempt {
                token: job.lease.token,
                job: job.lease.id,
                task_type,
                number: job.attempt,
                creation,
                span_id: new_span_id(),
                started: time_of(job.started.at_us),
                since: now,
                until: until.map(|ms| now + Duration::from_millis(ms.max(0) as u64) + UNKNOWN_AFTER),
            };
            if is_ours && job.attempt == 1 {
                self.queue.push(attempt.create_span(job.created));
            }
            self.queue.push(attempt.wait_span(time_of(job.started.at_us.saturating_sub(job.started.waited_us))));
            if is_ours {
                job.options.get_or_insert_default().traceparent = Some(attempt.creation.traceparent());
            }
            sampled.push((index, attempt.trace()));
            match self.open.insert(attempt) {
                Ok(None) => {}
                // The job had an earlier lease here, whose end was not reported.
                Ok(Some(lost)) => self.queue.push(lost.span(Ending::new("lost"))),
                Err(TooMany) => self.queue.dropped("attempts"),
            }
        }
        for late in self.open.take_late() {
            self.queue.push(late.span(Ending::new("unknown")));
        }
        sampled
    }
}

impl Tracer {
    fn adopted(&self, adopted: &AdoptedAttempt) {
        let (lease, traceparent) = (adopted.lease, adopted.traceparent.as_deref());
        let creation = self.sampler.creation_by(lease.id, traceparent, adopted.tracestate.as_deref());
        let Some((creation, _)) = creation else { return };
        let attempt = Attempt {
            token: lease.token,
            job: lease.id,
            task_type: self.registry.name(adopted.type_id).map(|name| name.to_string()).unwrap_or_default(),
            number: adopted.number,
            creation,
            span_id: new_span_id(),
            started: time_of(adopted.at_us),
            since: Instant::now(),
            // The worker's session reports the end of the attempt.
            until: None,
        };
        match self.open.insert(attempt) {
            Ok(None) => {}
            // The attempt has returned to this broker before this broker learned that the attempt had left.
            Ok(Some(earlier)) if earlier.token == lease.token => self.queue.push(earlier.span(Ending::new("moved"))),
            Ok(Some(lost)) => self.queue.push(lost.span(Ending::new("lost"))),
            Err(TooMany) => self.queue.dropped("attempts"),
        }
    }
}

/// Converts a time from the database, in µs of Unix time.
fn time_of(us: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(us).unwrap_or_default())
}

fn new_span_id() -> SpanId {
    SpanId::from(rand::random_range(1..=u64::MAX))
}

/// Labels for exemplars.
fn traced(trace_id: TraceId, span_id: SpanId) -> Traced {
    Traced { trace_id: trace_id.to_string(), span_id: span_id.to_string() }
}
