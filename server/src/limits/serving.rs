//! Limits of connections, and of the broker as a whole.

use howdah_core::{
    config::{Config, MOST_STORES},
    job::{IDS_OF_A_STORE, StoreNumber},
};
use howdah_engine::{
    intake::JOB_BYTES,
    maintain::job_gauges::MOST_TYPES,
    side_lane::MOST_LOCKED,
    traces::{MOST_OPEN, QUEUE},
};

use super::{Limit, bytes, fixed, limits_of, time};
use crate::{
    api::{incoming, server},
    credentials::jwt,
    tls, web,
};

pub(super) fn connections(config: &Config) -> Vec<Limit> {
    let limits = limits_of(config);
    vec![
        fixed("connections", format!("{}; more are closed at once", limits.connections)).by(&["limits.connections"]),
        fixed("concurrent streams and calls on a connection", limits.streams_per_connection.to_string())
            .by(&["limits.streams_per_connection"]),
        fixed(
            "TLS handshake; concurrent handshakes on a port",
            format!("{}; {}, further ones wait", time(tls::HANDSHAKE), tls::HANDSHAKES),
        ),
        fixed("HTTP/2 preface", time(server::PREFACE)),
        fixed(
            "acknowledgement by the peer's kernel (Linux)",
            format!("asked for every {}; {}", time(incoming::PROBE_INTERVAL), time(incoming::UNACKNOWLEDGED)),
        ),
        fixed(
            "HTTP/2 ping; its answer",
            format!("every {}; {}", time(server::PING_INTERVAL), time(server::PING_TIMEOUT)),
        ),
        fixed("headers of a call", bytes(server::HEADER_BYTES)),
        fixed(
            "JSON Web Token; the keys of an issuer; time to read them",
            format!("{}; {}; {}", bytes(jwt::TOKEN_BYTES), bytes(jwt::KEYS_BYTES), time(jwt::KEYS_WITHIN)),
        ),
        fixed(
            "unread bytes of a stream; of a connection",
            format!("{}; {}", bytes(server::STREAM_WINDOW), bytes(server::CONNECTION_WINDOW)),
        ),
        fixed("stream resets not handled yet", format!("{}; then the connection ends", server::PENDING_RESETS)),
        fixed(
            "HTTP port: connections; time for the headers of a request; for its body",
            format!("{}; {}; {}", web::CONNECTIONS, time(web::HEADERS_WITHIN), time(web::enqueue::BODY_WITHIN)),
        ),
        fixed(
            "HTTP port: concurrent requests that enqueue jobs; a connection whose answer is not read",
            format!(
                "{}, a quarter of them for one principal, then 503; ended after {}",
                web::ENQUEUES,
                time(web::write_within::WRITE_WITHIN)
            ),
        ),
        fixed(
            "HTTP port: memory for bodies, reserved as they arrive; time that a body waits for it",
            format!("{}; {}, then 503", bytes(limits.received_bytes), time(web::body::ROOM_WITHIN)),
        )
        .by(&["limits.received_bytes"]),
    ]
}

pub(super) fn broker(config: &Config) -> Vec<Limit> {
    let limits = limits_of(config);
    let gathered = bytes(limits.gathered_bytes);
    vec![
        fixed(
            "queued for Postgres before calls wait (backpressure)",
            format!(
                "{} jobs or {gathered}, each job counts {} plus its fields; results and errors of outcomes {gathered}",
                limits.gathered_jobs,
                bytes(JOB_BYTES)
            ),
        )
        .by(&["limits.gathered_jobs", "limits.gathered_bytes"]),
        fixed("Postgres does not answer", format!("{}, then UNAVAILABLE", time(config.database_timeout)))
            .by(&["database_timeout"]),
        fixed(
            "another transaction holds a lock that a call needs",
            format!("{}, then ABORTED; other calls do not wait", time(config.database_timeout)),
        )
        .by(&["database_timeout"]),
        fixed(
            "lock-blocked requests and outcomes",
            format!("{MOST_LOCKED} each, and at most a quarter of the queue's jobs and bytes"),
        ),
        fixed("a statement; an idle transaction", "30 s, ended by Postgres"),
        fixed(
            "connections to Postgres",
            format!(
                "{} for jobs, 4 for operators' calls, 1 for LISTEN; up to 10 more while other transactions hold locks",
                config.pool_size
            ),
        )
        .by(&["pool_size"]),
        fixed(
            "a broker's lease; renewed every",
            format!("{}; {}", time(config.broker_lease), time(config.renew_interval)),
        )
        .by(&["broker_lease", "renew_interval"]),
        fixed("delay of a job if every notification is lost", time(config.poll_interval)).by(&["poll_interval"]),
        fixed("stopping", time(config.drain_deadline)).by(&["drain_deadline"]),
        fixed(
            "spans that wait for the collector; sampled attempts in progress",
            format!("{QUEUE}; {MOST_OPEN}. More are dropped and counted"),
        ),
        fixed(
            "configured stores; store number; jobs of a store over all time",
            format!("{MOST_STORES}; 0 to {}; {}", StoreNumber::MOST, IDS_OF_A_STORE - 1),
        ),
        fixed("task types with separate metrics", MOST_TYPES.to_string()),
        fixed("PostgreSQL", "15 and later"),
    ]
}
