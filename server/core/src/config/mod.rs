//! The configuration: flags > environment > file > defaults, merged into one checked `Config`.

mod dsn; // connection strings in libpq's formats
mod check; // rules between several settings
mod formats; // formats of values: counts, sizes, durations, names, filters, paths
mod libpq; // options of a connection string, and libpq's variables
mod load; // merges the layers; errors name the source of a value
mod passfile; // passwords by server, database and user
mod setting; // the type of a setting; the effective settings as a configuration file
mod settings; // the table of all settings: key, bounds, field in `Config`, text for help and docs
mod stores; // configuration of several stores
mod url; // database URLs: validation, display without the password, files that contain them

#[cfg(test)]
mod dsn_tests;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, num::NonZero, path::PathBuf, thread::available_parallelism, time::Duration};

use crate::job::{Limits, RetryPolicy};

pub use check::{check_addresses, too_small_for};
pub use dsn::{Dsn, TlsVersion, Verify};
pub use formats::{bytes_of, bytes_words, duration_text};
pub use load::{ConfigError, Environment, Flag, load};
pub use setting::{Setting, Settings, as_toml};
pub use settings::ALL as SETTINGS;
pub use stores::{DEFAULT_STORE, MOST_STORES, StoreConfig};
pub use url::{UrlFile, redacted};

/// How a broker learns that jobs are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMode {
    /// LISTEN on a dedicated connection. A slow poll finds jobs whose notifications were lost.
    Listen,
    /// Polling without LISTEN, for transaction poolers and databases without LISTEN.
    Poll,
}

/// TLS files for both ports. Without `cert`, TLS is off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The broker's certificate, followed by the intermediate certificates.
    pub cert: Option<PathBuf>,
    /// Private key of the broker's certificate.
    pub key: Option<PathBuf>,
    /// Certificate authorities for client certificates, which become mandatory.
    pub client_ca: Option<PathBuf>,
    /// Revocation lists for client certificates.
    pub client_crl: Option<PathBuf>,
}

/// Mode of the web page for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageMode {
    /// Operators may use every function that their scopes allow.
    #[default]
    On,
    /// Operators may view the data that their scopes allow, and change nothing.
    ReadOnly,
    /// The page is not served.
    Off,
}

/// The kinds of credentials that a broker accepts. If all are off, every caller has all rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthModes {
    /// Howdah tokens.
    pub token: bool,
    /// JSON Web Tokens of identity providers.
    pub jwt: bool,
}

impl AuthModes {
    /// Whether no credential is required.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// The part of each job's payload that is archived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchivePayloads {
    /// The whole payloads.
    #[default]
    Full,
    /// The SHA-256 hash of the payload, without the payload.
    Hash,
    /// Only the sizes of payloads.
    None,
}

/// Export of spans to an OpenTelemetry collector. Off without `endpoint`.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// Address of a collector that accepts OTLP over gRPC. An empty text counts as unset.
    pub endpoint: Option<String>,
    /// Fraction of jobs to sample, from 0 to 1, among the jobs that are enqueued without a trace context.
    pub sample_ratio: f64,
    /// File with the headers to send to the collector, such as an API key.
    pub headers_file: Option<PathBuf>,
    /// File with the certificate authorities for the collector's certificate. `None` selects the system's authorities.
    pub ca: Option<PathBuf>,
}

impl Default for Otlp {
    fn default() -> Self {
        Self { endpoint: None, sample_ratio: 0.01, headers_file: None, ca: None }
    }
}

impl Otlp {
    /// Whether spans are created and exported.
    pub fn is_on(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_empty())
    }
}

/// The configuration of a broker.
#[expect(clippy::struct_excessive_bools, reason = "each flag is an independent setting")]
#[derive(Clone)]
pub struct Config {
    /// Connection string of Postgres. It may contain a password, so it is never printed in full. Empty with several stores.
    pub database_url: String,
    /// Files that connection strings were read from.
    pub url_files: Vec<UrlFile>,
    /// The configured stores. Empty if `database_url` is the only store.
    pub stores: Vec<StoreConfig>,
    /// Connection string for LISTEN, if `database_url` connects through a pooler.
    pub listen_database_url: Option<String>,
    /// Connection string of a read replica for lists, searches and statistics.
    pub read_database_url: Option<String>,
    /// Maximum lag of the read replica. Beyond it, the primary is read.
    pub read_replica_max_lag: Duration,
    /// The schema that holds the tables.
    pub schema: String,
    /// Maximum number of connections to Postgres for enqueueing, claiming and settling jobs.
    pub pool_size: u32,
    /// Number of runtime threads. `None` for the default of [`Config::worker_threads`].
    pub threads: Option<u32>,
    /// Address for gRPC.
    pub listen: SocketAddr,
    /// Address for health, readiness and metrics (HTTP).
    pub http: SocketAddr,
    /// Host names accepted on the HTTP address, besides localhost and IP addresses.
    pub http_host: Vec<String>,
    /// Whether the HTTP address accepts jobs.
    pub http_enqueue: bool,
    /// Mode of the page for operators on the HTTP address.
    pub page: PageMode,
    /// Path under which a reverse proxy serves the page, if it differs from the broker's path.
    pub page_prefix: Option<String>,
    /// TLS for both addresses.
    pub tls: TlsFiles,
    /// Whether to allow non-loopback addresses without authentication or TLS.
    pub insecure: bool,
    /// Credentials that callers must send.
    pub auth: AuthModes,
    /// File of tokens that are valid in addition to the stored tokens.
    pub auth_token_file: Option<PathBuf>,
    /// File of the trusted issuers of JSON Web Tokens.
    pub auth_jwt_file: Option<PathBuf>,
    /// Export of spans.
    pub otlp: Otlp,
    /// Whether to migrate the schema before serving.
    pub migrate: bool,
    /// The broker's name in logs and in `Welcome`.
    pub name: String,
    /// How the broker learns that jobs are ready.
    pub wake: WakeMode,
    /// Poll interval: the maximum delay of a ready job if its notification is lost.
    pub poll_interval: Duration,
    /// Time after the last renewal of a broker's row until the row expires and other brokers release its leases.
    pub broker_lease: Duration,
    /// Interval at which a broker renews its row in the table `broker`.
    pub renew_interval: Duration,
    /// Time that a worker has to resume its session after its stream broke.
    pub session_grace: Duration,
    /// Default liveness: time without a message after which a worker loses its leases.
    pub liveness: Duration,
    /// Maximum time from the signal to stop until the broker has stopped.
    pub drain_deadline: Duration,
    /// Time that calls wait for an unreachable Postgres before they fail with `UNAVAILABLE`.
    pub database_timeout: Duration,
    /// Commit delay: time that outcomes of busy workers wait to share one commit.
    pub outcome_wait: Duration,
    /// Time that the clocks of database and broker must agree before old data is deleted. Not a setting; tests shorten it.
    pub clock_settling: Duration,
    /// Whether to create new databases with a clock that tests can advance. Not a setting; `howdah dev --ephemeral` sets it.
    pub test_clock: bool,
    /// Retention of history in days.
    pub history_days: u16,
    /// Retention of the audit log in days.
    pub audit_days: u16,
    /// URL of the archive for finished jobs.
    pub archive_url: Option<String>,
    /// Part of payloads that is archived.
    pub archive_payloads: ArchivePayloads,
    /// Share of one processor that archiving may use while the database is busy.
    pub archive_share: f64,
    /// Retention of the archive in days. `None` for no limit.
    pub archive_days: Option<u16>,
    /// Maximum attempts of a job, unless the job or its task type sets a number.
    pub max_attempts: i16,
    /// Retry policy of a job, unless the job or its task type sets one.
    pub retry: RetryPolicy,
    /// Limits of this broker.
    pub limits: Limits,
}

impl Config {
    /// Returns the number of runtime threads. The default is half of the processors, because in the benchmark `cycle` a
    /// broker uses a third of the processor time of Postgres. A single thread avoids wake-ups between threads, a fifth
    /// of a broker's cost for a single job.
    pub fn worker_threads(&self) -> usize {
        let processors = || available_parallelism().map_or(1, NonZero::get);
        self.threads.map_or_else(|| (processors() / 2).max(1), |threads| threads as usize)
    }

    /// Returns the file that contains the connection string `url`, if the string was read from a file.
    pub fn url_file(&self, url: &str) -> Option<UrlFile> {
        self.url_files.iter().find(|file| file.held(url)).cloned()
    }

    /// Adds the files of a store of the configuration, for a database that the store's pattern matches.
    pub fn add_url_files(&mut self, pattern: &StoreConfig, database: &str) {
        let urls =
            [Some(&pattern.database_url), pattern.listen_database_url.as_ref(), pattern.read_database_url.as_ref()];
        let files = urls.into_iter().flatten().filter_map(|url| self.url_file(url));
        let files: Vec<UrlFile> = files.map(|file| file.of_database(database)).collect();
        self.url_files.extend(files);
    }

    /// Returns the default configuration with this database URL.
    pub fn new(database_url: impl Into<String>) -> Self {
        Self {
            database_url: database_url.into(),
            url_files: Vec::new(),
            stores: Vec::new(),
            listen_database_url: None,
            read_database_url: None,
            read_replica_max_lag: Duration::from_secs(30),
            schema: "howdah".into(),
            pool_size: 8,
            threads: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 7432)),
            http: SocketAddr::from(([127, 0, 0, 1], 7433)),
            http_host: Vec::new(),
            http_enqueue: false,
            page: PageMode::On,
            page_prefix: None,
            tls: TlsFiles::default(),
            insecure: false,
            auth: AuthModes::default(),
            auth_token_file: None,
            auth_jwt_file: None,
            otlp: Otlp::default(),
            migrate: true,
            name: format!("broker-{}", std::process::id()),
            wake: WakeMode::Listen,
            poll_interval: Duration::from_secs(1),
            broker_lease: Duration::from_secs(15),
            renew_interval: Duration::from_secs(5),
            session_grace: Duration::from_secs(10),
            liveness: Duration::from_secs(60),
            drain_deadline: Duration::from_secs(30),
            database_timeout: Duration::from_secs(15),
            // With 4 ms and a thousand jobs per second, five outcomes share a commit.
            outcome_wait: Duration::from_millis(4),
            clock_settling: Duration::from_secs(600),
            test_clock: false,
            history_days: 7,
            audit_days: 365,
            archive_url: None,
            archive_payloads: ArchivePayloads::Full,
            archive_share: 0.05,
            archive_days: None,
            max_attempts: 10,
            retry: RetryPolicy::default(),
            limits: Limits::default(),
        }
    }
}
