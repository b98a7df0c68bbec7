//! Every setting, in one table: its key in the file (which also gives its variable), its bounds, its field in [`Settings`],
//! and its texts. `howdah config` prints the table with the values in force; the help of flags and the table of
//! `docs/reference/settings.md` are made from it.

use super::{
    kinds::{
        ARCHIVE_PAYLOADS, Address, Auth, Count, Database, FORMAT, File, HostNames, Kind, Maybe, Name, Number, PAGE,
        Size, Switch, Text, Time, WAKE,
    },
    setting::{Setting, bounds},
    words::{archive_url, collector, log_filter, page_prefix, schema_name},
};
use crate::job::{ClusterSettings, Limits};

const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;
const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

macro_rules! setting {
    ($key:literal, $($field:ident).+, $kind:expr, $about:literal) => {
        Setting {
            key: $key,
            about: $about,
            bounds: || bounds(&$kind, |settings| &settings.$($field).+),
            get: |settings| Kind::show(&$kind, &settings.$($field).+),
            set: |settings, text| {
                settings.$($field).+ = Kind::parse(&$kind, text)?;
                Ok(())
            },
        }
    };
}

/// In the order of `howdah config`: plain keys first, then table by table, as TOML wants it.
pub const ALL: &[Setting] = &[
    setting!(
        "database_url",
        broker.database_url,
        Database,
        "Where Postgres is: postgres://user:password@host:port/database, or host=... user=..."
    ),
    setting!(
        "listen_database_url",
        broker.listen_database_url,
        Maybe(Database),
        "The same for the LISTEN connection, around a pooler; unset: database_url"
    ),
    setting!(
        "read_database_url",
        broker.read_database_url,
        Maybe(Database),
        "Where a replica is that lists, searches and statistics are read from; unset: database_url"
    ),
    setting!(
        "read_replica_max_lag",
        broker.read_replica_max_lag,
        Time(100..=DAY),
        "A replica that is further behind than this is not read; the primary is"
    ),
    setting!(
        "schema",
        broker.schema,
        Text(schema_name, "1 to 63 of a-z 0-9 _"),
        "The schema that holds the tables; it is created if it is missing"
    ),
    setting!("pool_size", broker.pool_size, Count(1..=1_000), "Most connections to Postgres for jobs; 1 counts as 2"),
    setting!("listen", broker.listen, Address, "Address for gRPC; port 0 picks a free one"),
    setting!("http", broker.http, Address, "Address for /healthz, /readyz and /metrics; port 0 picks a free one"),
    setting!(
        "http_host",
        broker.http_host,
        HostNames,
        "Names that the address http is called by, besides localhost and IP addresses; requests for other names are refused"
    ),
    setting!("http_enqueue", broker.http_enqueue, Switch, "Accept jobs on the address http too: POST /v1/jobs"),
    setting!("page", broker.page, PAGE, "The page for operators on the address http: /ui"),
    setting!(
        "page_prefix",
        broker.page_prefix,
        Maybe(Text(page_prefix, "a path, such as /howdah")),
        "The path under which a reverse proxy shows the address http; links of the page begin with it"
    ),
    setting!(
        "tls_cert",
        broker.tls.cert,
        Maybe(File),
        "Serve both addresses with TLS: the broker's certificate (PEM), with those of the authorities below the root"
    ),
    setting!("tls_key", broker.tls.key, Maybe(File), "The private key of tls_cert (PEM, not encrypted)"),
    setting!(
        "tls_client_ca",
        broker.tls.client_ca,
        Maybe(File),
        "Serve only clients with a certificate of these authorities (PEM)"
    ),
    setting!(
        "tls_client_crl",
        broker.tls.client_crl,
        Maybe(File),
        "Revoked certificates of clients: a list (PEM) of each authority in tls_client_ca"
    ),
    setting!(
        "insecure",
        broker.insecure,
        Switch,
        "Serve on other addresses than loopback, though nothing shows who calls, or tokens come in plain text"
    ),
    setting!("auth", broker.auth, Auth, "Which credentials callers must send"),
    setting!(
        "auth_token_file",
        broker.auth_token_file,
        Maybe(File),
        "A file with a token on each line, TOKEN PRINCIPAL SCOPE...; they hold besides those of `howdah token create`"
    ),
    setting!(
        "auth_jwt_file",
        broker.auth_jwt_file,
        Maybe(File),
        "The issuers whose JSON Web Tokens hold (TOML, a table [[issuer]] for each)"
    ),
    setting!(
        "otlp_endpoint",
        broker.otlp.endpoint,
        Maybe(Text(collector, "http://HOST:PORT, https://HOST:PORT")),
        "Send spans of sampled jobs to this OpenTelemetry collector (OTLP over gRPC); unset: no spans"
    ),
    setting!(
        "otlp_sample_ratio",
        broker.otlp.sample_ratio,
        Number(0.0..=1.0),
        "Part of the jobs without a trace of their own that is sampled; of the others their producers decide"
    ),
    setting!(
        "otlp_headers_file",
        broker.otlp.headers_file,
        Maybe(File),
        "A file with headers for the collector, NAME: VALUE on each line"
    ),
    setting!(
        "otlp_ca",
        broker.otlp.ca,
        Maybe(File),
        "The authorities of the collector's certificate (PEM); unset: those of the system"
    ),
    setting!(
        "threads",
        broker.threads,
        Maybe(Count(1..=1_024)),
        "Threads that do the broker's work; unset: one for each two processors, at least one"
    ),
    setting!("migrate", broker.migrate, Switch, "Bring the schema up to date at start"),
    setting!("name", broker.name, Name, "The broker's name, for logs and workers; unset: broker-PID"),
    setting!("wake", broker.wake, WAKE, "How the broker learns of new jobs; poll is for transaction poolers"),
    setting!(
        "poll_interval",
        broker.poll_interval,
        Time(10..=HOUR),
        "How late a job is picked up when every notification is lost"
    ),
    setting!(
        "broker_lease",
        broker.broker_lease,
        Time(200..=HOUR),
        "A broker that has not renewed its row for this time loses its leases to the others"
    ),
    setting!(
        "renew_interval",
        broker.renew_interval,
        Time(50..=HOUR),
        "How often a broker renews its row; at most half of broker_lease"
    ),
    setting!(
        "session_grace",
        broker.session_grace,
        Time(0..=HOUR),
        "How long a worker whose stream broke may come back to its jobs"
    ),
    setting!(
        "ping_interval",
        broker.ping_interval,
        Time(100..=HOUR),
        "How often an idle stream gets a Ping, which keeps proxies from closing it"
    ),
    setting!("drain_deadline", broker.drain_deadline, Time(0..=HOUR), "How long stopping may take"),
    setting!(
        "database_timeout",
        broker.database_timeout,
        Time(100..=HOUR),
        "How long calls wait for Postgres before they answer UNAVAILABLE"
    ),
    setting!(
        "outcome_wait",
        broker.outcome_wait,
        Time(0..=1_000),
        "How long outcomes of workers wait to be written together, from 500 a second on"
    ),
    setting!(
        "history_days",
        broker.history_days,
        Count(1..=3_650),
        "Days to keep finished jobs, unless their type has its own"
    ),
    setting!(
        "audit_days",
        broker.audit_days,
        Count(1..=3_650),
        "Days to keep the audit of what people and programs have changed"
    ),
    setting!(
        "archive_url",
        broker.archive_url,
        Maybe(Text(archive_url, "file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX")),
        "Write finished jobs to Parquet files before they are dropped; credentials come from AWS_..., GOOGLE_..., AZURE_... variables"
    ),
    setting!(
        "archive_payloads",
        broker.archive_payloads,
        ARCHIVE_PAYLOADS,
        "What is archived of payloads: full, their SHA-256 (hash), or only their sizes (none). Results are archived as they are"
    ),
    setting!(
        "archive_share",
        broker.archive_share,
        Number(0.001..=1.0),
        "Share of one processor that archiving takes while the database is busy; 1: no limit. It takes more for a day that would be late"
    ),
    setting!(
        "archive_days",
        broker.archive_days,
        Maybe(Count(1..=36_500)),
        "Days to keep the archive, unset: for ever. The files of older days are deleted when their partitions are gone"
    ),
    setting!(
        "max_attempts",
        broker.max_attempts,
        Count(1..=1_000),
        "Deliveries of a job, at most, unless the job or its type has its own"
    ),
    setting!(
        "log",
        log.filter,
        Maybe(Text(log_filter, "off, error, warn, info, debug, trace, or target=level,...")),
        "What is logged: a level, or target=level pairs separated by commas; unset: info"
    ),
    setting!(
        "log_format",
        log.format,
        FORMAT,
        "How it is logged, on standard error; auto is text on a terminal, and JSON otherwise"
    ),
    setting!(
        "retry.initial",
        broker.retry.initial,
        Time(0..=30 * DAY),
        "Delay after the first failure, unless the job or its type has its own"
    ),
    setting!(
        "retry.multiplier",
        broker.retry.multiplier,
        Number(1.0..=100.0),
        "Growth of the delay from one failure to the next"
    ),
    setting!("retry.max", broker.retry.max, Time(0..=30 * DAY), "The longest delay, before jitter"),
    setting!("retry.jitter", broker.retry.jitter, Number(0.0..=1.0), "Part of the delay that is random: 0.1 is ±10 %"),
    setting!(
        "limits.message_bytes",
        broker.limits.message_bytes,
        Size(16 * KIB..=GIB),
        "Largest gRPC message, in and out; must hold a payload, its headers and 4 KiB"
    ),
    setting!(
        "limits.received_bytes",
        broker.limits.received_bytes,
        Size(64 * KIB..=64 * GIB),
        "Memory for all messages of 16 KiB and more that are received or worked on at once; smaller ones have as much again"
    ),
    setting!(
        "limits.answer_bytes",
        broker.limits.answer_bytes,
        Size(1 << 20..=64 * GIB),
        "Memory for answers that clients have not read yet, and for requests of pipelines that are not answered yet"
    ),
    setting!(
        "limits.error_bytes",
        broker.limits.error_bytes,
        Size(64..=16 << 20),
        "Longest error text; longer ones are cut and marked"
    ),
    setting!("limits.stream_types", broker.limits.stream_types, Count(1..=100_000), "Task types on a stream"),
    setting!("limits.window_jobs", broker.limits.window_jobs, Count(1..=10_000_000), "Jobs in a window"),
    setting!("limits.window_bytes", broker.limits.window_bytes, Size(16 * KIB..=64 * GIB), "Bytes in a window"),
    setting!(
        "limits.streams_per_connection",
        broker.limits.streams_per_connection,
        Count(1..=1_000_000),
        "Calls and streams at once on a connection"
    ),
    setting!("limits.connections", broker.limits.connections, Count(1..=1_000_000), "Connections at once"),
    setting!(
        "limits.principal_jobs_per_second",
        broker.limits.principal_jobs_per_second,
        Maybe(Count(1..=1_000_000_000)),
        "Jobs that one principal may enqueue in a second, at this broker; unset: any number"
    ),
    setting!(
        "limits.principal_bytes_per_second",
        broker.limits.principal_bytes_per_second,
        Maybe(Size(1 << 10..=1 << 40)),
        "Bytes of jobs that one principal may enqueue in a second, at this broker; unset: any number"
    ),
    setting!(
        "limits.principal_streams",
        broker.limits.principal_streams,
        Maybe(Count(1..=1_000_000)),
        "Streams of one principal at once; unset: as many as limits.connections"
    ),
    setting!(
        "limits.principal_connections",
        broker.limits.principal_connections,
        Maybe(Count(1..=1_000_000)),
        "Connections of one principal at once; unset: a quarter of limits.connections"
    ),
    setting!(
        "limits.address_connections",
        broker.limits.address_connections,
        Maybe(Count(1..=1_000_000)),
        "Connections of one address (IPv6: /64) at once that are not authenticated yet; unset: a quarter of limits.connections"
    ),
    setting!(
        "limits.address_failures_per_second",
        broker.limits.address_failures_per_second,
        Count(1..=1_000_000),
        "Calls of one address (IPv6: /64) in a second whose credential does not hold"
    ),
    setting!(
        "limits.first_message",
        broker.limits.first_message,
        Time(100..=HOUR),
        "How long to wait for a stream's first message"
    ),
    setting!(
        "limits.gathered_bytes",
        broker.limits.gathered_bytes,
        Size(16 * KIB..=64 * GIB),
        "Bytes gathered for Postgres before calls wait"
    ),
    setting!(
        "limits.gathered_jobs",
        broker.limits.gathered_jobs,
        Count(1..=100_000_000),
        "Jobs gathered for Postgres before calls wait"
    ),
];

// Checks of bounds above that other code relies on.
const _: () = assert!(Limits::MAX_ATTEMPTS == 1_000);
const _: () = assert!(ClusterSettings::HIGHEST.job_bytes() as u64 <= GIB);
