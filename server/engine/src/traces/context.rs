//! W3C trace contexts, and the sampling of jobs.

use std::str::FromStr as _;

use howdah_core::job::{JobOptions, LeasedJob};
use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
use sha2::{Digest as _, Sha256};

/// Trace context in which a job was created: the parent of the job's spans.
#[derive(Clone, Debug)]
pub(super) struct Creation {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    pub(super) state: TraceState,
}

impl Creation {
    /// Formats the trace context as a `traceparent` with the sampled flag.
    pub(super) fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace_id, self.span_id)
    }

    /// Parses the trace context that a producer gave to a job. `None` if the producer did not sample the job, or if the
    /// context is invalid.
    fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let (trace_id, span_id, flags) = parts(traceparent)?;
        let state = || tracestate.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
        flags.is_sampled().then(|| Self { trace_id, span_id, state: state() })
    }
}

/// Whether the text is a valid W3C `traceparent`.
pub fn is_trace_context(traceparent: &str) -> bool {
    traceparent.len() <= MOST_BYTES && parts(traceparent).is_some()
}

/// Maximum length of a `traceparent`, in bytes.
const MOST_BYTES: usize = 200;

fn parts(traceparent: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut parts = traceparent.split('-');
    let (version, trace_id, span_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_context = is_hex(version, 2)
            && version != "ff"
            && is_hex(trace_id, 32)
            && is_hex(span_id, 16)
            && is_hex(flags, 2)
            // Versions of `traceparent` later than 00 may have more parts.
            && (version != "00" || parts.next().is_none());
    if !is_context {
        return None;
    }
    let (trace_id, span_id) = (TraceId::from_hex(trace_id).ok()?, SpanId::from_hex(span_id).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    (trace_id != TraceId::INVALID && span_id != SpanId::INVALID).then_some((trace_id, span_id, flags))
}

/// Decides which jobs are sampled. The producer has decided for jobs with a trace context. A fraction of the other jobs is sampled
/// by their ids, so that every broker decides the same for every attempt of a job.
pub(super) struct Sampler {
    /// A job is sampled if the hash of its id is below this number.
    below: u64,
    seed: u64,
    database_id: String,
}

impl Sampler {
    pub(super) fn new(ratio: f64, database_id: &str) -> Self {
        let digest = Sha256::digest(database_id);
        let seed = digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // A ratio of 1 samples all jobs, because the cast to `u64` saturates.
        Self { below: (ratio * 2_f64.powi(64)) as u64, seed, database_id: database_id.to_owned() }
    }

    /// Returns the trace context of a job and whether this broker created the context; `None` if the job is not
    /// sampled.
    pub(super) fn creation_of(&self, job: &LeasedJob) -> Option<(Creation, bool)> {
        let options = job.options.as_ref();
        let text = |of: fn(&JobOptions) -> Option<&str>| options.and_then(|options| of(options));
        let (traceparent, tracestate) =
            (text(|options| options.traceparent.as_deref()), text(|options| options.tracestate.as_deref()));
        self.creation_by(job.lease.id, traceparent, tracestate)
    }

    /// Does the same as `creation_of`, from the job's id and its trace context.
    pub(super) fn creation_by(
        &self,
        id: i64,
        traceparent: Option<&str>,
        tracestate: Option<&str>,
    ) -> Option<(Creation, bool)> {
        match traceparent {
            Some(traceparent) => Creation::parse(traceparent, tracestate).map(|creation| (creation, false)),
            None => self.samples(id).then(|| (self.creation(id), true)),
        }
    }

    fn samples(&self, id: i64) -> bool {
        self.below == u64::MAX || mixed(id as u64 ^ self.seed) < self.below
    }

    /// Derives the trace context of a job from its id. So the context is the same for every attempt and at every
    /// broker, and needs no storage.
    fn creation(&self, id: i64) -> Creation {
        let digest = Sha256::new().chain_update(&self.database_id).chain_update(id.to_le_bytes()).finalize();
        let (trace_id, rest) = digest.split_first_chunk::<16>().map_or(([1; 16], &[][..]), |(id, rest)| (*id, rest));
        let span_id = rest.first_chunk::<8>().map_or([1; 8], |id| *id);
        Creation {
            trace_id: TraceId::from_bytes(trace_id),
            span_id: SpanId::from_bytes(span_id),
            state: TraceState::default(),
        }
    }
}

/// Mixes sequential ids into evenly distributed numbers (the finalizer of `SplitMix64`).
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn a_sampled_trace_context_is_taken_and_written_as_it_was() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let creation = Creation::parse(&text, Some("vendor=abc,other=1")).unwrap();
        assert_eq!((creation.traceparent(), creation.state.header().as_str()), (text, "vendor=abc,other=1"));
        // A `traceparent` of a later version, with more parts and other flags.
        assert!(Creation::parse(&format!("cc-{TRACE}-{SPAN}-03-more"), None).is_some());
    }

    #[test]
    fn unsampled_and_invalid_trace_contexts_are_ignored() {
        let zeros = "0".repeat(32);
        for text in [
            format!("00-{TRACE}-{SPAN}-00"),
            format!("00-{TRACE}-{SPAN}-02"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-{}é-{SPAN}-01", &TRACE[..30]),
            "x".into(),
            String::new(),
        ] {
            assert!(Creation::parse(&text, None).is_none(), "{text}");
        }
        // An invalid `tracestate` is dropped; the trace is kept.
        let creation = Creation::parse(&format!("00-{TRACE}-{SPAN}-01"), Some("no state")).unwrap();
        assert_eq!(creation.state.header(), "");
    }

    #[test]
    fn the_part_of_the_ids_that_is_sampled_is_the_ratio() {
        let sampled = |ratio| {
            let sampler = Sampler::new(ratio, "a database");
            (0..100_000).filter(|&id| sampler.samples(id)).count()
        };
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 100_000));
        assert!((900..1_100).contains(&sampled(0.01)), "{}", sampled(0.01));
    }

    #[test]
    fn every_broker_of_a_database_makes_the_same_trace_of_a_job_and_no_two_jobs_share_one() {
        let of = |database: &str, id| Sampler::new(1.0, database).creation(id).traceparent();
        assert_eq!(of("a", 7), of("a", 7));
        assert_ne!(of("a", 7), of("a", 8));
        assert_ne!(of("a", 7), of("b", 7));
        assert!(Creation::parse(&of("a", 7), None).is_some());
    }
}
