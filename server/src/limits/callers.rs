//! Limits per principal and per address, for brokers with authentication.

use howdah_core::config::{Config, bytes_words};

use super::{Limit, fixed, limits_of};

pub(super) fn limits(config: &Config) -> Vec<Limit> {
    let limits = limits_of(config);
    vec![
        fixed(
            "connections of one principal; its streams",
            format!(
                "{}; {}, then RESOURCE_EXHAUSTED",
                limits.connections_of_principal(),
                limits.streams_of_principal()
            ),
        )
        .by(&["limits.principal_connections", "limits.principal_streams"]),
        fixed(
            "jobs and bytes of jobs that one principal may enqueue per second",
            format!(
                "{}; {}; further calls get RESOURCE_EXHAUSTED, and streams of StreamEnqueue are read more slowly",
                limits.principal_jobs_per_second.map_or("no limit".into(), |jobs| jobs.to_string()),
                limits.principal_bytes_per_second.map_or("no limit".into(), bytes_words)
            ),
        )
        .by(&["limits.principal_jobs_per_second", "limits.principal_bytes_per_second"]),
        fixed(
            "connections of one address (IPv6: /64) that are not authenticated yet; calls per second \
             with an invalid credential",
            format!(
                "{}, more are closed at once; {}, then RESOURCE_EXHAUSTED",
                limits.connections_of_address(),
                limits.address_failures_per_second
            ),
        )
        .by(&["limits.address_connections", "limits.address_failures_per_second"]),
    ]
}
