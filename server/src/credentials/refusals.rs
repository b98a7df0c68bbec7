//! Counts refused calls, and logs at most one per second and reason, so that a flood of calls cannot flood the log.

use std::net::SocketAddr;

use howdah_core::{error::Error, logging::Throttle};
use howdah_engine::metrics::ByReason;
use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, family::Family};
use tonic::Code;

/// Counts and logs refused calls. Log lines contain no credential: errors name a token by its public part.
#[derive(Default)]
pub(crate) struct Refusals {
    counts: Family<ByReason, Counter>,
    unauthenticated: Mutex<Throttle>,
    denied: Mutex<Throttle>,
}

/// A refused call.
pub struct Refusal<'a> {
    /// gRPC status code of the response.
    pub code: Code,
    /// Error message of the response.
    pub problem: &'a str,
    /// Principal of the caller. `None` if the caller was not identified.
    pub principal: Option<&'a str>,
    /// Address of the caller.
    pub peer: Option<SocketAddr>,
    /// Name of the call, or path on the HTTP port.
    pub method: &'a str,
}

impl Refusals {
    /// Creates a counter of refused calls for this metric.
    pub(crate) fn counting(counts: Family<ByReason, Counter>) -> Self {
        Self { counts, ..Self::default() }
    }

    /// Counts and logs an error of the HTTP port, if its code means that the caller was refused.
    pub(crate) fn note_http(&self, error: &Error, method: &str) {
        let (code, problem) = (error.code().0, &*error.to_string());
        self.note(&Refusal { code, problem, principal: None, peer: None, method });
    }

    /// Counts and logs the response to a call, if its code means that the caller was refused.
    pub(crate) fn note(&self, refusal: &Refusal<'_>) {
        let (reason, throttle) = match refusal.code {
            Code::Unauthenticated => ("unauthenticated", &self.unauthenticated),
            Code::PermissionDenied => ("permission_denied", &self.denied),
            _ => return,
        };
        self.counts.get_or_create(&ByReason { reason }).inc();
        let Some(calls) = throttle.lock().count() else { return };
        let Refusal { problem, principal, peer, method, .. } = refusal;
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let principal = principal.unwrap_or_default();
        tracing::warn!(reason, problem, principal, peer, method, calls, "refused a call");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_reason_and_other_answers_are_not() {
        let refusals = Refusals::default();
        for code in [Code::Unauthenticated, Code::PermissionDenied, Code::PermissionDenied, Code::NotFound, Code::Ok] {
            refusals.note(&Refusal { code, problem: "", principal: Some("ann"), peer: None, method: "GetJob" });
        }
        let count = |reason| refusals.counts.get_or_create(&ByReason { reason }).get();
        assert_eq!((count("unauthenticated"), count("permission_denied")), (1, 2));
    }
}
