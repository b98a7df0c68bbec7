//! Metadata of an enqueue: the deadline of the caller (`grpc-timeout`), and the trace context.
//!
//! Jobs without a trace context inherit the one of the call, so a producer whose gRPC library sends trace headers needs no
//! other code.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName};
use howdah_engine::traces::is_trace_context;
use howdah_proto::v1;
use tonic::metadata::MetadataMap;

/// Maximum number of digits of the value of `grpc-timeout`.
const DIGITS: usize = 8;

/// Time at which the caller stops waiting; `None` without a deadline.
pub(super) fn deadline(metadata: &MetadataMap) -> Option<Instant> {
    let timeout = parse(metadata.get("grpc-timeout")?.to_str().ok()?)?;
    Instant::now().checked_add(timeout)
}

/// Parses a value of `grpc-timeout`: a number and a unit, such as `250m` for 250 ms.
fn parse(text: &str) -> Option<Duration> {
    let (amount, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = amount.parse().ok().filter(|_| amount.len() <= DIGITS)?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Maximum length of a job's trace state, in bytes.
const STATE_BYTES: usize = 512;

/// Copies the trace context from these headers to the jobs that have none. Ignores an invalid context, as the W3C specification
/// requires.
pub(crate) fn give_trace_context(headers: &HeaderMap, jobs: &mut [v1::NewJob]) {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(parent) = text(TRACEPARENT).filter(|parent| is_trace_context(parent)) else { return };
    let state = text(TRACESTATE).filter(|state| state.len() <= STATE_BYTES).unwrap_or_default();
    for job in jobs.iter_mut().filter(|job| job.traceparent.is_empty()) {
        parent.clone_into(&mut job.traceparent);
        state.clone_into(&mut job.tracestate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_a_unit() {
        let parsed = ["2H", "3M", "4S", "5m", "6u", "7n"].map(parse);
        let secs = Duration::from_secs;
        let expected = [secs(7200), secs(180), secs(4), Duration::from_millis(5), Duration::from_micros(6)];
        assert_eq!(parsed[..5], expected.map(Some));
        assert_eq!(parsed[5], Some(Duration::from_nanos(7)));
    }

    #[test]
    fn junk_is_no_timeout() {
        assert_eq!(["", "S", "1", "-1S", "123456789S", "1x", "1ß"].map(parse), [None; 7]);
    }

    const CONTEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn given(headers: &[(HeaderName, &str)], traceparent: &str) -> (String, String) {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        let mut jobs = [v1::NewJob { traceparent: traceparent.into(), ..v1::NewJob::default() }];
        give_trace_context(&headers, &mut jobs);
        let [job] = jobs;
        (job.traceparent, job.tracestate)
    }

    #[test]
    fn a_job_takes_the_context_of_its_call_unless_it_has_its_own() {
        let headers = [(TRACEPARENT, CONTEXT), (TRACESTATE, "a=b")];
        assert_eq!(given(&headers, ""), (CONTEXT.into(), "a=b".into()));
        assert_eq!(given(&headers, "own"), ("own".into(), String::new()));
    }

    #[test]
    fn a_wrong_context_is_left_out_and_no_error() {
        assert_eq!(given(&[(TRACEPARENT, "x"), (TRACESTATE, "a=b")], ""), Default::default());
        assert_eq!(given(&[(TRACEPARENT, &"0".repeat(300))], ""), Default::default());
        let long = "a=".to_owned() + &"b".repeat(511);
        assert_eq!(given(&[(TRACEPARENT, CONTEXT), (TRACESTATE, &long)], ""), (CONTEXT.into(), String::new()));
    }
}
