//! Limits of connections, of principals and addresses, of the page, and of the broker as a whole.

use howdah_core::{
    config::{Config, MOST_STORES, bytes_words},
    job::{IDS_OF_A_STORE, StoreNumber},
};
use howdah_engine::{
    intake::JOB_BYTES,
    maintain::job_gauges::MOST_TYPES,
    side_lane::MOST_LOCKED,
    traces::{MOST_OPEN, QUEUE},
};

use super::{Limit, bytes, rows, time};
use crate::{
    api::{incoming, server},
    credentials::jwt,
    page::bounds,
    tls, web,
};

pub(super) fn connections(config: &Config) -> Vec<Limit> {
    let limits = &config.limits;
    rows! {
        "connections": "{}; more are closed at once", limits.connections => Broker["limits.connections"];
        "concurrent streams and calls on a connection": "{}",
            limits.streams_per_connection => Broker["limits.streams_per_connection"];
        "TLS handshake; concurrent handshakes on a port": "{}; {}, further ones wait",
            time(tls::HANDSHAKE), tls::HANDSHAKES;
        "HTTP/2 preface": "{}", time(server::PREFACE);
        "acknowledgement by the peer's kernel (Linux)": "asked for every {}; {}",
            time(incoming::PROBE_INTERVAL), time(incoming::UNACKNOWLEDGED);
        "HTTP/2 ping; its answer": "every {}; {}", time(server::PING_INTERVAL), time(server::PING_TIMEOUT);
        "headers of a call": "{}", bytes(server::HEADER_BYTES);
        "JSON Web Token; the keys of an issuer; time to read them": "{}; {}; {}",
            bytes(jwt::TOKEN_BYTES), bytes(jwt::KEYS_BYTES), time(jwt::KEYS_WITHIN);
        "unread bytes of a stream; of a connection": "{}; {}",
            bytes(server::STREAM_WINDOW), bytes(server::CONNECTION_WINDOW);
        "stream resets not handled yet": "{}; then the connection ends", server::PENDING_RESETS;
        "HTTP port: connections; time for the headers of a request; for its body": "{}; {}; {}",
            web::CONNECTIONS, time(web::HEADERS_WITHIN), time(web::enqueue::BODY_WITHIN);
        "HTTP port: concurrent requests that enqueue jobs; a connection whose answer is not read":
            "{}, a quarter of them for one principal, then 503; ended after {}",
            web::ENQUEUES, time(web::write_within::WRITE_WITHIN);
        "HTTP port: memory for bodies, reserved as they arrive; time that a body waits for it": "{}; {}, then 503",
            bytes(limits.received_bytes), time(web::body::ROOM_WITHIN) => Broker["limits.received_bytes"];
    }
}

pub(super) fn callers(config: &Config) -> Vec<Limit> {
    let limits = &config.limits;
    rows! {
        "connections of one principal; its streams": "{}; {}, then RESOURCE_EXHAUSTED",
            limits.connections_of_principal(), limits.streams_of_principal()
            => Broker["limits.principal_connections", "limits.principal_streams"];
        "jobs and bytes of jobs that one principal may enqueue per second":
            "{}; {}; further calls get RESOURCE_EXHAUSTED, and streams of StreamEnqueue are read more slowly",
            limits.principal_jobs_per_second.map_or("no limit".into(), |jobs| jobs.to_string()),
            limits.principal_bytes_per_second.map_or("no limit".into(), bytes_words)
            => Broker["limits.principal_jobs_per_second", "limits.principal_bytes_per_second"];
        "connections of one address (IPv6: /64) that are not authenticated yet; calls per second with an invalid \
            credential": "{}, more are closed at once; {}, then RESOURCE_EXHAUSTED",
            limits.connections_of_address(), limits.address_failures_per_second
            => Broker["limits.address_connections", "limits.address_failures_per_second"];
    }
}

pub(super) fn page(_: &Config) -> Vec<Limit> {
    rows! {
        "browsers with live figures; time until they reconnect; update interval":
            "{}, then 503, and a principal at most its streams; {}; every {}",
            bounds::MOST_LIVE, time(bounds::LIVE), time(bounds::LIVE_PERIOD);
        "parameters of a request; bytes of a form; jobs chosen in it": "{}; {}; {}",
            bounds::PARAMS, bytes(bounds::FORM_BYTES), bounds::MOST_IDS;
        "part of a payload or result shown as JSON or text; in hex": "the first {}; the first {}",
            bytes(bounds::TEXT), bytes(bounds::HEX);
        "session of an operator who signed in with a token; bytes of the token": "{}; {}",
            time(bounds::SESSION), bounds::TOKEN_BYTES;
    }
}

pub(super) fn broker(config: &Config) -> Vec<Limit> {
    let limits = &config.limits;
    rows! {
        "queued for Postgres before calls wait (backpressure)": "{0} jobs or {1}, each job counts {2} plus its \
            fields; results and errors of outcomes {1}",
            limits.gathered_jobs, bytes(limits.gathered_bytes), bytes(JOB_BYTES)
            => Broker["limits.gathered_jobs", "limits.gathered_bytes"];
        "Postgres does not answer": "{}, then UNAVAILABLE",
            time(config.database_timeout) => Broker["database_timeout"];
        "another transaction holds a lock that a call needs": "{}, then ABORTED; other calls do not wait",
            time(config.database_timeout) => Broker["database_timeout"];
        "lock-blocked requests and outcomes": "{MOST_LOCKED} each, and at most a quarter of the queue's jobs and bytes";
        "a statement; an idle transaction": "30 s, ended by Postgres";
        "connections to Postgres":
            "{} for jobs, 4 for operators' calls, 1 for LISTEN; up to 10 more while other transactions hold locks",
            config.pool_size => Broker["pool_size"];
        "a broker's lease; renewed every": "{}; {}",
            time(config.broker_lease), time(config.renew_interval) => Broker["broker_lease", "renew_interval"];
        "delay of a job if every notification is lost": "{}", time(config.poll_interval) => Broker["poll_interval"];
        "stopping": "{}", time(config.drain_deadline) => Broker["drain_deadline"];
        "spans that wait for the collector; sampled attempts in progress":
            "{QUEUE}; {MOST_OPEN}. More are dropped and counted";
        "configured stores; store number; jobs of a store over all time": "{MOST_STORES}; 0 to {}; {}",
            StoreNumber::MOST, IDS_OF_A_STORE - 1;
        "task types with separate metrics": "{MOST_TYPES}";
        "PostgreSQL": "15 and later";
    }
}
