//! Limits of one principal and of one address, where callers are told apart.

use super::{Limit, fixed, of};
use crate::config::{Config, bytes_words};

pub(super) fn limits(config: &Config) -> Vec<Limit> {
    let limits = of(config);
    vec![
        fixed(
            "connections of one principal; streams of it",
            format!(
                "{}; {}, then RESOURCE_EXHAUSTED",
                limits.connections_of_principal(),
                limits.streams_of_principal()
            ),
        )
        .by(&["limits.principal_connections", "limits.principal_streams"]),
        fixed(
            "jobs, and bytes of jobs, that one principal may enqueue in a second",
            format!(
                "{}; {}; then RESOURCE_EXHAUSTED, and pipelines are read more slowly",
                limits.principal_jobs_per_second.map_or("any number".into(), |jobs| jobs.to_string()),
                limits.principal_bytes_per_second.map_or("any number".into(), bytes_words)
            ),
        )
        .by(&["limits.principal_jobs_per_second", "limits.principal_bytes_per_second"]),
        fixed(
            "connections of one address (IPv6: /64) that are not authenticated yet; calls in a second \
             whose credential does not hold",
            format!(
                "{}, more are closed at once; {}, then RESOURCE_EXHAUSTED",
                limits.connections_of_address(),
                limits.address_failures_per_second
            ),
        )
        .by(&["limits.address_connections", "limits.address_failures_per_second"]),
    ]
}
