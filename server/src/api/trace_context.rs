//! Trace context of a call. Jobs without a trace context inherit it, so a producer whose gRPC library sends trace headers needs
//! no other code.

use axum::http::{HeaderMap, HeaderName};
use howdah_engine::traces::is_trace_context;
use howdah_proto::v1;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Maximum length of a job's trace state, in bytes.
const STATE_BYTES: usize = 512;

/// Copies the trace context from these headers to the jobs that have none. Ignores an invalid context, as the W3C specification
/// requires.
pub(crate) fn give(headers: &HeaderMap, jobs: &mut [v1::NewJob]) {
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

    const CONTEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn given(headers: &[(HeaderName, &str)], traceparent: &str) -> (String, String) {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        let mut jobs = [v1::NewJob { traceparent: traceparent.into(), ..v1::NewJob::default() }];
        give(&headers, &mut jobs);
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
