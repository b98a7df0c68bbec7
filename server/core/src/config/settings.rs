//! The table of all settings: key in the file (which determines the environment variable), bounds, field in
//! [`Settings`], and description. `howdah config` prints the table with the effective values. The help of flags and the
//! table in `docs/reference/settings.md` are generated from it.

use super::{
    formats::{
        ARCHIVE_PAYLOADS, Address, Auth, Count, Database, FORMAT, File, HostNames, Kind, Maybe, Name, Number, PAGE,
        Size, Switch, Text, Time, WAKE, archive_url, collector, log_filter, page_prefix, schema_name,
    },
    setting::{Setting, bounds},
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

/// All settings in the order in which `howdah config` prints them. TOML requires keys without a table first.
pub const ALL: &[Setting] = &[
    setting!(
        "database_url",
        broker.database_url,
        Database,
        "Connection string of Postgres: postgres://user:password@host:port/database, or host=... user=..."
    ),
    setting!(
        "listen_database_url",
        broker.listen_database_url,
        Maybe(Database),
        "Connection string for LISTEN that bypasses a pooler; unset: database_url"
    ),
    setting!(
        "read_database_url",
        broker.read_database_url,
        Maybe(Database),
        "Connection string of a read replica for lists, searches and statistics; unset: database_url"
    ),
    setting!(
        "read_replica_max_lag",
        broker.read_replica_max_lag,
        Time(100..=DAY),
        "Maximum lag of the read replica; beyond it the primary is read"
    ),
    setting!(
        "schema",
        broker.schema,
        Text(schema_name, "1 to 63 of a-z 0-9 _"),
        "Schema that holds the tables; it is created if it is missing"
    ),
    setting!(
        "pool_size",
        broker.pool_size,
        Count(1..=1_000),
        "Maximum connections to Postgres for jobs; 1 counts as 2"
    ),
    setting!("listen", broker.listen, Address, "Address for gRPC; port 0 selects a free port"),
    setting!("http", broker.http, Address, "Address for /healthz, /readyz and /metrics; port 0 selects a free port"),
    setting!(
        "http_host",
        broker.http_host,
        HostNames,
        "Host names accepted on the address http, besides localhost and IP addresses; requests for other names are refused"
    ),
    setting!("http_enqueue", broker.http_enqueue, Switch, "Accept jobs on the address http: POST /v1/jobs"),
    setting!("page", broker.page, PAGE, "Page for operators on the address http: /ui"),
    setting!(
        "page_prefix",
        broker.page_prefix,
        Maybe(Text(page_prefix, "a path, such as /howdah")),
        "Path prefix under which a reverse proxy serves the HTTP port (setting http); links of the page begin with it"
    ),
    setting!(
        "tls_cert",
        broker.tls.cert,
        Maybe(File),
        "Serve both addresses with TLS: the broker's certificate (PEM), followed by the intermediate certificates"
    ),
    setting!("tls_key", broker.tls.key, Maybe(File), "Private key of tls_cert (PEM, not encrypted)"),
    setting!(
        "tls_client_ca",
        broker.tls.client_ca,
        Maybe(File),
        "Require client certificates signed by these certificate authorities (PEM)"
    ),
    setting!(
        "tls_client_crl",
        broker.tls.client_crl,
        Maybe(File),
        "Revocation lists for client certificates (PEM): one list for each authority in tls_client_ca"
    ),
    setting!("insecure", broker.insecure, Switch, "Allow non-loopback addresses without authentication or TLS"),
    setting!("auth", broker.auth, Auth, "Credentials that callers must send"),
    setting!(
        "auth_token_file",
        broker.auth_token_file,
        Maybe(File),
        "File with one token per line, TOKEN PRINCIPAL SCOPE...; valid in addition to the tokens of `howdah token create`"
    ),
    setting!(
        "auth_jwt_file",
        broker.auth_jwt_file,
        Maybe(File),
        "File of trusted issuers of JSON Web Tokens (TOML, one table [[issuer]] per issuer)"
    ),
    setting!(
        "otlp_endpoint",
        broker.otlp.endpoint,
        Maybe(Text(collector, "http://HOST:PORT, https://HOST:PORT")),
        "OpenTelemetry collector for spans of sampled jobs (OTLP over gRPC); unset: no spans"
    ),
    setting!(
        "otlp_sample_ratio",
        broker.otlp.sample_ratio,
        Number(0.0..=1.0),
        "Fraction of the jobs without a trace context that is sampled; for other jobs the producer decides"
    ),
    setting!(
        "otlp_headers_file",
        broker.otlp.headers_file,
        Maybe(File),
        "File with headers for the collector, one NAME: VALUE per line"
    ),
    setting!(
        "otlp_ca",
        broker.otlp.ca,
        Maybe(File),
        "Certificate authorities for the collector's certificate (PEM); unset: the system's authorities"
    ),
    setting!(
        "threads",
        broker.threads,
        Maybe(Count(1..=1_024)),
        "Number of runtime threads; unset: half of the processors, at least one"
    ),
    setting!("migrate", broker.migrate, Switch, "Migrate the schema at start"),
    setting!("name", broker.name, Name, "Name of the broker in logs and for workers; unset: broker-PID"),
    setting!("wake", broker.wake, WAKE, "How the broker learns of new jobs; poll is for transaction poolers"),
    setting!(
        "poll_interval",
        broker.poll_interval,
        Time(10..=HOUR),
        "Poll interval: the maximum delay of a job if every notification is lost"
    ),
    setting!(
        "broker_lease",
        broker.broker_lease,
        Time(200..=HOUR),
        "A broker that does not renew its row for this time loses its leases to other brokers"
    ),
    setting!(
        "renew_interval",
        broker.renew_interval,
        Time(50..=HOUR),
        "Interval at which a broker renews its row; at most half of broker_lease"
    ),
    setting!(
        "session_grace",
        broker.session_grace,
        Time(0..=HOUR),
        "Time that a worker has to resume its session after its stream broke; at most its liveness"
    ),
    setting!(
        "liveness",
        broker.liveness,
        Time(10_000..=HOUR),
        "Time without a message after which a worker is lost and its leases end; workers may set another time"
    ),
    setting!("drain_deadline", broker.drain_deadline, Time(0..=HOUR), "Maximum time to stop"),
    setting!(
        "database_timeout",
        broker.database_timeout,
        Time(100..=HOUR),
        "Time that calls wait for Postgres before they fail with UNAVAILABLE"
    ),
    setting!(
        "outcome_wait",
        broker.outcome_wait,
        Time(0..=1_000),
        "Commit delay: time that outcomes wait to share one commit, from 500 outcomes a second on"
    ),
    setting!(
        "history_days",
        broker.history_days,
        Count(1..=3_650),
        "Days to keep finished jobs, unless their type has its own value"
    ),
    setting!("audit_days", broker.audit_days, Count(1..=3_650), "Days to keep the audit log"),
    setting!(
        "archive_url",
        broker.archive_url,
        Maybe(Text(archive_url, "file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX")),
        "Archive: finished jobs are written there as Parquet files before they are dropped; credentials come from AWS_..., GOOGLE_..., AZURE_... variables"
    ),
    setting!(
        "archive_payloads",
        broker.archive_payloads,
        ARCHIVE_PAYLOADS,
        "Payloads in the archive: full, their SHA-256 (hash), or only their sizes (none). Results are always archived in full"
    ),
    setting!(
        "archive_share",
        broker.archive_share,
        Number(0.001..=1.0),
        "Share of one processor that archiving may use while the database is busy; 1: no limit. A day that would be late gets more"
    ),
    setting!(
        "archive_days",
        broker.archive_days,
        Maybe(Count(1..=36_500)),
        "Days to keep the archive; unset: forever. Files of older days are deleted after their partitions are dropped"
    ),
    setting!(
        "max_attempts",
        broker.max_attempts,
        Count(1..=1_000),
        "Maximum attempts of a job, unless the job or its type has its own value"
    ),
    setting!(
        "log",
        log.filter,
        Maybe(Text(log_filter, "off, error, warn, info, debug, trace, or target=level,...")),
        "Log filter: a level, or target=level pairs separated by commas; unset: info"
    ),
    setting!(
        "log_format",
        log.format,
        FORMAT,
        "Format of the log on standard error; auto is text on a terminal, JSON otherwise"
    ),
    setting!(
        "retry.initial",
        broker.retry.initial,
        Time(0..=30 * DAY),
        "Delay after the first failure, unless the job or its type has its own value"
    ),
    setting!(
        "retry.multiplier",
        broker.retry.multiplier,
        Number(1.0..=100.0),
        "Factor by which the delay grows with each failure"
    ),
    setting!("retry.max", broker.retry.max, Time(0..=30 * DAY), "Maximum delay, before jitter"),
    setting!("retry.jitter", broker.retry.jitter, Number(0.0..=1.0), "Random part of the delay: 0.1 is ±10 %"),
    setting!(
        "limits.message_bytes",
        broker.limits.message_bytes,
        Size(16 * KIB..=GIB),
        "Maximum size of a gRPC message, in both directions; must hold a payload, its headers and 4 KiB"
    ),
    setting!(
        "limits.received_bytes",
        broker.limits.received_bytes,
        Size(64 * KIB..=64 * GIB),
        "Memory for messages of 16 KiB or more while they are received and processed; smaller messages have a separate budget of the same size"
    ),
    setting!(
        "limits.answer_bytes",
        broker.limits.answer_bytes,
        Size(1 << 20..=64 * GIB),
        "Memory for answers that clients have not read yet, and for unanswered requests of pipelines; jobs that wait to be sent to workers have a separate budget of the same size"
    ),
    setting!(
        "limits.error_bytes",
        broker.limits.error_bytes,
        Size(64..=16 << 20),
        "Maximum length of an error text; longer texts are truncated and marked"
    ),
    setting!("limits.stream_types", broker.limits.stream_types, Count(1..=100_000), "Maximum task types per stream"),
    setting!("limits.window_jobs", broker.limits.window_jobs, Count(1..=10_000_000), "Maximum jobs in a window"),
    setting!("limits.window_bytes", broker.limits.window_bytes, Size(16 * KIB..=64 * GIB), "Maximum bytes in a window"),
    setting!(
        "limits.streams_per_connection",
        broker.limits.streams_per_connection,
        Count(1..=1_000_000),
        "Maximum concurrent calls and streams per connection"
    ),
    setting!("limits.connections", broker.limits.connections, Count(1..=1_000_000), "Maximum concurrent connections"),
    setting!(
        "limits.principal_jobs_per_second",
        broker.limits.principal_jobs_per_second,
        Maybe(Count(1..=1_000_000_000)),
        "Maximum jobs per second that one principal may enqueue at this broker; unset: no limit"
    ),
    setting!(
        "limits.principal_bytes_per_second",
        broker.limits.principal_bytes_per_second,
        Maybe(Size(1 << 10..=1 << 40)),
        "Maximum bytes of jobs per second that one principal may enqueue at this broker; unset: no limit"
    ),
    setting!(
        "limits.principal_streams",
        broker.limits.principal_streams,
        Maybe(Count(1..=1_000_000)),
        "Maximum concurrent streams of one principal; unset: limits.connections"
    ),
    setting!(
        "limits.principal_connections",
        broker.limits.principal_connections,
        Maybe(Count(1..=1_000_000)),
        "Maximum concurrent connections of one principal; unset: a quarter of limits.connections"
    ),
    setting!(
        "limits.address_connections",
        broker.limits.address_connections,
        Maybe(Count(1..=1_000_000)),
        "Maximum concurrent connections of one address (IPv6: /64) that are not authenticated yet; unset: a quarter of limits.connections"
    ),
    setting!(
        "limits.address_failures_per_second",
        broker.limits.address_failures_per_second,
        Count(1..=1_000_000),
        "Maximum calls per second with an invalid credential from one address (IPv6: /64)"
    ),
    setting!(
        "limits.first_message",
        broker.limits.first_message,
        Time(100..=HOUR),
        "Time to wait for a stream's first message"
    ),
    setting!(
        "limits.gathered_bytes",
        broker.limits.gathered_bytes,
        Size(16 * KIB..=64 * GIB),
        "Bytes queued for Postgres before calls wait (backpressure)"
    ),
    setting!(
        "limits.gathered_jobs",
        broker.limits.gathered_jobs,
        Count(1..=100_000_000),
        "Jobs queued for Postgres before calls wait (backpressure)"
    ),
];

// Code outside the configuration relies on these bounds.
const _: () = assert!(Limits::MAX_ATTEMPTS == 1_000);
const _: () = assert!(ClusterSettings::HIGHEST.job_bytes() as u64 <= GIB);
