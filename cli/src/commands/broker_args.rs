//! The flags of the configuration. Values are checked together with those of files and variables.

use std::path::PathBuf;

use super::{context::Global, failure::Failure};
use howdah_server::config::{self, Environment, Flag, Settings};

/// Configuration file, and any of its keys.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct ConfigArgs {
    /// Read this configuration file (TOML); `howdah config` prints one [env: HOWDAH_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any key of the configuration, such as limits.message_bytes='32 MiB'; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Use this schema for the tables [env: HOWDAH_SCHEMA] [default: howdah]
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
}

/// The database.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct DatabaseArgs {
    /// Connect to this Postgres: postgres://user:password@host:port/database or "host=... user=...". Other
    /// users of this machine can read flags, so put a password into HOWDAH_DATABASE_URL, or into a file
    /// that HOWDAH_DATABASE_URL_FILE names
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Connect to this one for LISTEN, if the other is a pooler [env: HOWDAH_LISTEN_DATABASE_URL or ..._FILE]
    #[arg(long, value_name = "URL")]
    listen_database_url: Option<String>,
}

/// The common settings of a broker.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct BrokerArgs {
    /// Listen for gRPC on this address; port 0 picks a free one [env: HOWDAH_LISTEN] [default: 127.0.0.1:7432]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Listen for health checks and metrics on this address; port 0 picks a free one [env: HOWDAH_HTTP]
    /// [default: 127.0.0.1:7433]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Accept jobs over HTTP too, with POST /v1/jobs on the address of --http [env: HOWDAH_HTTP_ENQUEUE]
    #[arg(long)]
    http_enqueue: bool,
    /// Name of the broker, for logs and workers [env: HOWDAH_NAME] [default: broker-PID]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Use at most this many connections to Postgres for jobs [env: HOWDAH_POOL_SIZE] [default: 8]
    #[arg(long, value_name = "N")]
    pool_size: Option<String>,
    /// How the broker learns of new jobs: listen (notifications of Postgres), or poll, for a transaction
    /// pooler [env: HOWDAH_WAKE] [default: listen]
    #[arg(long, value_name = "MODE")]
    wake: Option<String>,
    /// Look for jobs at least this often, in case a notification is lost [env: HOWDAH_POLL_INTERVAL]
    /// [default: 1s]
    #[arg(long, value_name = "DURATION")]
    poll_interval: Option<String>,
    /// Let a worker whose stream broke resume within this time [env: HOWDAH_SESSION_GRACE] [default:
    /// 10s]
    #[arg(long, value_name = "DURATION")]
    session_grace: Option<String>,
    /// Stop within this time [env: HOWDAH_DRAIN_DEADLINE] [default: 30s]
    #[arg(long, value_name = "DURATION")]
    drain_deadline: Option<String>,
    /// Keep finished jobs for this many days [env: HOWDAH_HISTORY_DAYS] [default: 7]
    #[arg(long, value_name = "N")]
    history_days: Option<String>,
    /// Deliver a job at most this many times, if neither it nor its type sets a number [env: HOWDAH_MAX_ATTEMPTS]
    /// [default: 10]
    #[arg(long, value_name = "N")]
    max_attempts: Option<String>,
}

impl ConfigArgs {
    /// The settings in force: these flags, `flags`, the environment, the file, the defaults.
    pub(super) fn load(&self, global: &Global, flags: Vec<Flag>) -> Result<Settings, Failure> {
        let generic = self.set.iter().map(|(key, value)| Flag {
            flag: format!("--set {key}"),
            key: key.clone(),
            value: value.clone(),
        });
        let format = global.log_format.map(|format| format!("{format:?}").to_lowercase());
        let own =
            [flag("schema", self.schema.as_ref()), flag("log", global.filter()), flag("log_format", format.as_ref())];
        let flags = generic.chain(own.into_iter().flatten()).chain(flags).collect();
        Ok(config::load(self.config.clone(), &Environment::of_process(), flags)?)
    }
}

impl DatabaseArgs {
    pub(super) fn flags(&self) -> Vec<Flag> {
        let urls = [("database_url", &self.database_url), ("listen_database_url", &self.listen_database_url)];
        urls.into_iter().filter_map(|(key, value)| flag(key, value.as_ref())).collect()
    }
}

impl BrokerArgs {
    pub(super) fn flags(&self) -> Vec<Flag> {
        let on = self.http_enqueue.then(|| "true".to_owned());
        let values = [
            ("listen", &self.listen),
            ("http_enqueue", &on),
            ("http", &self.http),
            ("name", &self.name),
            ("pool_size", &self.pool_size),
            ("wake", &self.wake),
            ("poll_interval", &self.poll_interval),
            ("session_grace", &self.session_grace),
            ("drain_deadline", &self.drain_deadline),
            ("history_days", &self.history_days),
            ("max_attempts", &self.max_attempts),
        ];
        values.into_iter().filter_map(|(key, value)| flag(key, value.as_ref())).collect()
    }
}

/// The flag for a key, if it was given.
pub(super) fn flag(key: &str, value: Option<&String>) -> Option<Flag> {
    let flag = format!("--{}", key.replace('_', "-"));
    value.map(|value| Flag { flag, key: key.into(), value: value.clone() })
}

/// The settings, if they name a database.
pub(super) fn with_database(settings: Settings) -> Result<Settings, Failure> {
    if settings.broker.database_url.is_empty() {
        return Err(Failure::usage(
            "no database given: set --database-url, HOWDAH_DATABASE_URL, HOWDAH_DATABASE_URL_FILE, or database_url in \
             the configuration file (`howdah dev` brings its own)",
        ));
    }
    Ok(settings)
}

/// `KEY=VALUE`.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("an = is missing: write KEY=VALUE")?;
    if key.is_empty() {
        return Err("the KEY before = is missing: write KEY=VALUE".into());
    }
    Ok((key.trim().to_owned(), value.to_owned()))
}
