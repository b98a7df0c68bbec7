//! Limits of connections, and of the broker as a whole.

use super::{Limit, bytes, fixed, of, time};
use crate::{
    access::jwt,
    api::server,
    config::{Config, MOST_STORES},
    intake::JOB_BYTES,
    job::{IDS_OF_A_STORE, StoreNumber},
    maintain::job_gauges::MOST_TYPES,
    side_lane::MOST_LOCKED,
    tls,
    traces::{MOST_OPEN, QUEUE},
    web,
};

pub(super) fn connections(config: &Config) -> Vec<Limit> {
    let limits = of(config);
    vec![
        fixed("connections", format!("{}; more are closed at once", limits.connections)).by(&["limits.connections"]),
        fixed("streams and calls at once on a connection", limits.streams_per_connection.to_string())
            .by(&["limits.streams_per_connection"]),
        fixed(
            "TLS handshake; handshakes at once on a port",
            format!("{}; {}, others wait their turn", time(tls::HANDSHAKE), tls::HANDSHAKES),
        ),
        fixed("HTTP/2 preface", time(server::PREFACE)),
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
            "HTTP port: requests that send jobs at once; a connection whose answer is not read",
            format!(
                "{}, of one principal a quarter of them, then 503; ended after {}",
                web::ENQUEUES,
                time(web::write_within::WRITE_WITHIN)
            ),
        ),
        fixed(
            "HTTP port: memory for bodies, taken as they arrive; how long one waits for it",
            format!("{}; {}, then 503", bytes(limits.received_bytes), time(web::body::ROOM_WITHIN)),
        )
        .by(&["limits.received_bytes"]),
    ]
}

pub(super) fn broker(config: &Config) -> Vec<Limit> {
    let limits = of(config);
    let gathered = bytes(limits.gathered_bytes);
    vec![
        fixed(
            "gathered for Postgres before calls wait",
            format!(
                "{} jobs or {gathered}, a job with {} besides its fields; results and errors of outcomes {gathered}",
                limits.gathered_jobs,
                bytes(JOB_BYTES)
            ),
        )
        .by(&["limits.gathered_jobs", "limits.gathered_bytes"]),
        fixed("Postgres does not answer", format!("{}, then UNAVAILABLE", time(config.database_timeout)))
            .by(&["database_timeout"]),
        fixed(
            "another transaction has locked what a call needs",
            format!("{}, then ABORTED; others do not wait for it", time(config.database_timeout)),
        )
        .by(&["database_timeout"]),
        fixed(
            "requests and outcomes that wait for such locks",
            format!("{MOST_LOCKED} each, and a quarter of what may gather"),
        ),
        fixed("a statement; an idle transaction", "30 s, ended by Postgres"),
        fixed(
            "connections to Postgres",
            format!(
                "{} for jobs; 4 for operators' calls and 1 for LISTEN besides; up to 10 more while others hold locks",
                config.pool_size
            ),
        )
        .by(&["pool_size"]),
        fixed(
            "a broker's lease; renewed every",
            format!("{}; {}", time(config.broker_lease), time(config.renew_interval)),
        )
        .by(&["broker_lease", "renew_interval"]),
        fixed("a job is picked up though every notification is lost", time(config.poll_interval))
            .by(&["poll_interval"]),
        fixed("stopping", time(config.drain_deadline)).by(&["drain_deadline"]),
        fixed(
            "spans that wait for the collector; sampled attempts under way",
            format!("{QUEUE}; {MOST_OPEN}. More are dropped and counted"),
        ),
        fixed(
            "stores that are configured; the number of a store; its jobs, of all time",
            format!("{MOST_STORES}; 0 to {}; {}", StoreNumber::MOST, IDS_OF_A_STORE - 1),
        ),
        fixed("task types with metrics of their own", MOST_TYPES.to_string()),
        fixed("PostgreSQL", "15 and later"),
    ]
}
