//! The flags of the configuration. Values are checked where those of files and variables are.

use std::path::PathBuf;

use super::{context::Global, failure::Failure};
use howdah_server::config::{self, Environment, Flag, Settings};

/// Where the configuration is, and any of its keys.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct ConfigArgs {
    /// Configuration file (TOML); `howdah config` prints one [env: HOWDAH_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets any key of the configuration, such as limits.message_bytes='32 MiB'; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Schema that holds the tables [env: HOWDAH_SCHEMA] [default: howdah]
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
}

/// Where Postgres is.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct DatabaseArgs {
    /// Postgres, as postgres://user:password@host:port/database or "host=... user=..."; other
    /// users of this machine see flags, so a password is better off in HOWDAH_DATABASE_URL, or in
    /// a file that HOWDAH_DATABASE_URL_FILE names
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// The same for LISTEN, around the pooler [env: HOWDAH_LISTEN_DATABASE_URL or ..._FILE]
    #[arg(long, value_name = "URL")]
    listen_database_url: Option<String>,
}

/// The common settings of a broker.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct BrokerArgs {
    /// Address for gRPC; port 0 picks one [env: HOWDAH_LISTEN] [default: 127.0.0.1:7432]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address for health, readiness and metrics; port 0 picks one [env: HOWDAH_HTTP] [default:
    /// 127.0.0.1:7433]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Take jobs on that address too, by POST /v1/jobs, for those who have only curl [env:
    /// HOWDAH_HTTP_ENQUEUE]
    #[arg(long)]
    http_enqueue: bool,
    /// The broker's name, for logs and workers [env: HOWDAH_NAME] [default: broker-PID]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Connections to Postgres for jobs, at most [env: HOWDAH_POOL_SIZE] [default: 8]
    #[arg(long, value_name = "N")]
    pool_size: Option<String>,
    /// How it hears of new jobs: listen, or poll behind a transaction pooler [env: HOWDAH_WAKE]
    /// [default: listen]
    #[arg(long, value_name = "MODE")]
    wake: Option<String>,
    /// How late a job is picked up when every notification is lost [env: HOWDAH_POLL_INTERVAL]
    /// [default: 1s]
    #[arg(long, value_name = "DURATION")]
    poll_interval: Option<String>,
    /// How long a worker whose stream broke may come back [env: HOWDAH_SESSION_GRACE] [default:
    /// 10s]
    #[arg(long, value_name = "DURATION")]
    session_grace: Option<String>,
    /// How long stopping may take [env: HOWDAH_DRAIN_DEADLINE] [default: 30s]
    #[arg(long, value_name = "DURATION")]
    drain_deadline: Option<String>,
    /// Days that finished jobs are kept [env: HOWDAH_HISTORY_DAYS] [default: 7]
    #[arg(long, value_name = "N")]
    history_days: Option<String>,
    /// Deliveries of a job that says nothing, at most [env: HOWDAH_MAX_ATTEMPTS] [default: 10]
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

/// The flag of a key, if it was given.
pub(super) fn flag(key: &str, value: Option<&String>) -> Option<Flag> {
    let flag = format!("--{}", key.replace('_', "-"));
    value.map(|value| Flag { flag, key: key.into(), value: value.clone() })
}

/// The settings, if they say where Postgres is.
pub(super) fn with_database(settings: Settings) -> Result<Settings, Failure> {
    if settings.broker.database_url.is_empty() {
        return Err(Failure::usage(
            "no database given: use --database-url, HOWDAH_DATABASE_URL, HOWDAH_DATABASE_URL_FILE, or database_url in \
             the configuration file (`howdah dev` brings its own)",
        ));
    }
    Ok(settings)
}

/// `KEY=VALUE`.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("an = is missing: write KEY=VALUE")?;
    if key.is_empty() {
        return Err("the KEY before = is missing".into());
    }
    Ok((key.trim().to_owned(), value.to_owned()))
}
