//! The configuration: flags > environment > file > defaults, merged into one checked `Config`.

mod dsn; // connection strings, as libpq takes them
mod check; // what must hold between settings
mod kinds; // how a value is written: counts, sizes, durations
mod load; // the layers, and which one an error comes from
mod setting; // what a setting is
mod settings; // the table of all: key, bounds, field in `Config`, texts in help and docs
mod stores; // several databases
mod show; // the effective settings, as a file
mod url; // database URLs: checked, and shown without the password
mod words; // texts that are checked: names, filters, paths

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, num::NonZero, path::PathBuf, thread::available_parallelism, time::Duration};

use crate::job::{Limits, RetryPolicy};

pub use check::{check_addresses, too_small_for};
pub use dsn::{Dsn, Verify};
pub use kinds::{bytes_of, bytes_words, words};
pub use load::{ConfigError, Environment, Flag, load};
pub use setting::{Setting, Settings};
pub use settings::ALL as SETTINGS;
pub use show::as_toml;
pub use stores::{DEFAULT_STORE, MOST_STORES, StoreConfig};
pub use url::redacted;

/// How a broker learns of new jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMode {
    /// LISTEN on a connection of its own, and a slow poll in case notifications are lost.
    Listen,
    /// Poll only: behind a transaction pooler, or on engines without LISTEN.
    Poll,
}

/// The files of TLS, which serves both ports. Without `cert` there is no TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The broker's certificate, and those of the authorities between it and the root.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The authorities of clients, who must show a certificate then.
    pub client_ca: Option<PathBuf>,
    /// Lists of clients' certificates that are revoked.
    pub client_crl: Option<PathBuf>,
}

/// What people can do on the page for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageMode {
    /// Whatever their rights allow.
    #[default]
    On,
    /// Look at what their rights allow, and change nothing.
    ReadOnly,
    /// There is no page.
    Off,
}

/// The credentials that a broker accepts; none: everybody may do everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthModes {
    /// Tokens of Howdah.
    pub token: bool,
    /// JSON Web Tokens of others.
    pub jwt: bool,
}

impl AuthModes {
    /// Whether it asks for none.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What is archived of payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchivePayloads {
    /// All of them.
    #[default]
    Full,
    /// Their SHA-256.
    Hash,
    /// Their sizes only.
    None,
}

/// Where the spans of sampled jobs go. Without `endpoint` there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The address of a collector that speaks OTLP over gRPC. Empty is none, too.
    pub endpoint: Option<String>,
    /// The part of the jobs without a trace that is sampled, from 0 to 1.
    pub sample_ratio: f64,
    /// Headers for the collector.
    pub headers_file: Option<PathBuf>,
    /// The authorities of its certificate, instead of those of the system.
    pub ca: Option<PathBuf>,
}

impl Default for Otlp {
    fn default() -> Self {
        Self { endpoint: None, sample_ratio: 0.01, headers_file: None, ca: None }
    }
}

impl Otlp {
    /// Whether spans are made.
    pub fn is_on(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_empty())
    }
}

/// The configuration of a broker.
#[derive(Clone)]
pub struct Config {
    /// The connection string of Postgres. It may have a password, so it is never printed whole. Empty with several stores.
    pub database_url: String,
    /// The stores by name; empty: the one that `database_url` is.
    pub stores: Vec<StoreConfig>,
    /// The connection string for LISTEN, if `database_url` goes through a pooler.
    pub listen_database_url: Option<String>,
    /// The connection string of a replica for lists, searches and statistics.
    pub read_database_url: Option<String>,
    /// How far that may be behind; beyond it the primary is read.
    pub read_replica_max_lag: Duration,
    /// The schema that holds the tables.
    pub schema: String,
    /// Most connections for the hot statements.
    pub pool_size: u32,
    /// Threads that do the broker's work, if not as many as [`Config::worker_threads`] says.
    pub threads: Option<u32>,
    /// gRPC address.
    pub listen: SocketAddr,
    /// Address of health, readiness and metrics.
    pub http: SocketAddr,
    /// The names that it answers to, besides localhost and addresses.
    pub http_host: Vec<String>,
    /// Whether that address also takes jobs.
    pub http_enqueue: bool,
    /// The page for operators on that address.
    pub page: PageMode,
    /// The path under which a reverse proxy shows the page, if it is not the same as here.
    pub page_prefix: Option<String>,
    /// TLS on both addresses.
    pub tls: TlsFiles,
    /// Whether to serve on other addresses than loopback without knowing who calls.
    pub insecure: bool,
    /// Which credentials it asks for.
    pub auth: AuthModes,
    /// A file of tokens that hold besides the stored ones.
    pub auth_token_file: Option<PathBuf>,
    /// The issuers whose JSON Web Tokens hold.
    pub auth_jwt_file: Option<PathBuf>,
    /// Where spans go.
    pub otlp: Otlp,
    /// Whether to bring the schema up to date before serving.
    pub migrate: bool,
    /// The broker's name in logs and in `Welcome`.
    pub name: String,
    /// How it learns of new jobs.
    pub wake: WakeMode,
    /// Time between two polls: how late a job is found if every notification is lost.
    pub poll_interval: Duration,
    /// How long after its last renewal a broker loses its leases.
    pub broker_lease: Duration,
    /// How often it renews.
    pub renew_interval: Duration,
    /// How long a worker may take to resume a session whose stream broke.
    pub session_grace: Duration,
    /// How often an idle stream gets a `Ping`.
    pub ping_interval: Duration,
    /// How long stopping may take.
    pub drain_deadline: Duration,
    /// How long calls wait for Postgres before they answer `UNAVAILABLE`.
    pub database_timeout: Duration,
    /// How long outcomes that come fast wait for each other, to be written together.
    pub outcome_wait: Duration,
    /// Days that history is kept.
    pub history_days: u16,
    /// Days that rows of the audit are kept.
    pub audit_days: u16,
    /// Where finished jobs are archived.
    pub archive_url: Option<String>,
    /// What is archived of payloads.
    pub archive_payloads: ArchivePayloads,
    /// The share of a processor that archiving takes while the database is busy.
    pub archive_share: f64,
    /// Days that the archive is kept; unset: for ever.
    pub archive_days: Option<u16>,
    /// Most attempts of a job, if neither the job nor its type sets a number.
    pub max_attempts: i16,
    /// Retry policy of a job, if neither the job nor its type sets one.
    pub retry: RetryPolicy,
    /// Limits of this broker.
    pub limits: Limits,
}

impl Config {
    /// How many threads should do the broker's work. Half of the processors: in `cycle` a broker takes a third of the time that
    /// Postgres takes, and one thread wakes no other one up, which is a fifth of what a single job costs the broker.
    pub fn worker_threads(&self) -> usize {
        let processors = || available_parallelism().map_or(1, NonZero::get);
        self.threads.map_or_else(|| (processors() / 2).max(1), |threads| threads as usize)
    }

    /// The default configuration with this database.
    pub fn new(database_url: impl Into<String>) -> Self {
        Self {
            database_url: database_url.into(),
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
            ping_interval: Duration::from_secs(20),
            drain_deadline: Duration::from_secs(30),
            database_timeout: Duration::from_secs(15),
            // Five outcomes share a commit then, at a thousand jobs a second.
            outcome_wait: Duration::from_millis(4),
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
