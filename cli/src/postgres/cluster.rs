use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::binaries::{Binaries, Places};
use super::choose::choose;
use super::error::DevError;
use super::fetch::{Fetch, Fetcher};
use super::launch::Launch;
use super::postmaster::{Postmaster, StopMode};
use super::{blocking, init, settings};

/// The superuser of a private cluster.
pub const SUPERUSER: &str = "howdah";

/// How long a start may take, with recovery after a crash.
const START_DEADLINE: Duration = Duration::from_mins(1);
/// How long a stop may take before a harder one.
const STOP_DEADLINE: Duration = Duration::from_mins(1);
const STOP_NOW_DEADLINE: Duration = Duration::from_secs(10);

/// Characters that need no escape in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The settings of a private Postgres.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// The data directory, created if needed. `None`: a temporary directory, removed at the end.
    pub data_dir: Option<PathBuf>,
    /// The parent of that temporary directory. Default: the system's directory for temporary files.
    pub temporary_dir: PathBuf,
    /// The bin directory of the Postgres to run. `None`: the one that [`Binaries::find`] finds, else one that is
    /// downloaded.
    pub binaries: Option<PathBuf>,
    /// Whether Postgres may be downloaded if none is installed.
    pub fetch: Fetch,
    /// False is faster, but a crash of the machine destroys the cluster: only for temporary data.
    pub fsync: bool,
    /// Further Postgres settings. They override ours, except `unix_socket_directories`.
    pub settings: Vec<(String, String)>,
    /// Postgres's `max_connections`.
    pub max_connections: u32,
    /// Load `pg_stat_statements`, if it is installed.
    pub pg_stat_statements: bool,
    /// The program that knows the hidden command (see [`run_if_guard`](super::run_if_guard)). `None`: this one.
    pub howdah_binary: Option<PathBuf>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            data_dir: None,
            temporary_dir: std::env::temp_dir(),
            binaries: None,
            fetch: Fetch::default(),
            fsync: true,
            settings: Vec::new(),
            max_connections: 100,
            pg_stat_statements: false,
            howdah_binary: None,
        }
    }
}

/// A private Postgres. It ends when this is dropped, and when this process ends, also by `kill -9`.
///
/// At the end a persistent cluster is shut down cleanly. A temporary one is stopped at once and removed; if this
/// process is killed, the next start removes it.
#[derive(Debug)]
pub struct Cluster {
    postmaster: Postmaster, // dropped, and so stopped, before its directories
    launch: Arc<Launch>,
}

impl Cluster {
    /// Starts it, and returns when it accepts connections. If the future is dropped before, no process and no
    /// incomplete Postgres is left.
    pub async fn start(config: ClusterConfig) -> Result<Self, DevError> {
        let fetcher = Fetcher::of_this_machine(config.fetch.clone());
        let binaries = choose(Places::of_this_machine(config.binaries.as_deref()), &fetcher, made_by(&config)?).await?;
        let launch = Arc::new(blocking(move || Launch::prepare(&config, binaries)).await?);
        let (postmaster, from) = spawn(&launch).await?;
        let mut cluster = Self { postmaster, launch };
        cluster.become_ready(from).await?;
        Ok(cluster)
    }

    /// The URL of one of its databases, for tokio-postgres and libpq.
    pub fn url(&self, database: &str) -> String {
        let host = self.launch.socket_dir().to_string_lossy().into_owned();
        let mut url = format!(
            "postgres://{SUPERUSER}@/{}?host={}",
            utf8_percent_encode(database, PLAIN),
            utf8_percent_encode(&host, PLAIN)
        );
        if self.launch.port != settings::PORT {
            url.push_str("&port=");
            url.push_str(&self.launch.port);
        }
        url
    }

    /// The data directory, which also has its log, `postgres.log`.
    pub fn data_dir(&self) -> &Path {
        &self.launch.data_dir
    }

    /// Its programs.
    pub fn binaries(&self) -> &Binaries {
        &self.launch.binaries
    }

    /// The process id of its postmaster.
    pub fn pid(&self) -> u32 {
        self.postmaster.pid()
    }

    /// Creates a database of this name, if there is none.
    pub async fn create_database(&self, name: &str) -> Result<(), DevError> {
        let failed = |error: &tokio_postgres::Error| DevError::Sql {
            doing: format!("create database {name:?}"),
            why: error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned()),
        };
        let client = self.connect().await.map_err(|error| failed(&error))?;
        let quoted = name.replace('"', "\"\"");
        match client.batch_execute(&format!("CREATE DATABASE \"{quoted}\"")).await {
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_DATABASE) => Ok(()),
            Err(error) => Err(failed(&error)),
            Ok(()) => Ok(()),
        }
    }

    /// Stops the server, and returns when it has ended. If that takes too long, it is stopped harder.
    pub async fn stop(&mut self, mode: StopMode) {
        let limit = if mode == StopMode::Fast { STOP_DEADLINE } else { STOP_NOW_DEADLINE };
        for (signal, limit) in
            [(mode.signal(), limit), (Signal::QUIT, STOP_NOW_DEADLINE), (Signal::KILL, STOP_DEADLINE)]
        {
            self.postmaster.signal(signal);
            if timeout(limit, self.postmaster.exited()).await.is_ok() {
                return;
            }
            tracing::warn!(pid = self.pid(), ?signal, "PostgreSQL does not stop");
        }
    }

    /// Starts the server again, with the same data and URL. Stops it first if necessary.
    pub async fn restart(&mut self) -> Result<(), DevError> {
        self.stop(StopMode::Fast).await;
        let (postmaster, from) = spawn(&self.launch).await?;
        self.postmaster = postmaster;
        self.become_ready(from).await
    }

    async fn become_ready(&mut self, mut from: u64) -> Result<(), DevError> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            match self.is_ready(deadline, from).await {
                // A postmaster that was killed leaves its children, for as long as their statements run.
                Err(DevError::Exited { tail, .. }) if tail.contains("is still in use") && Instant::now() < deadline => {
                    sleep(Duration::from_millis(100)).await;
                    (self.postmaster, from) = spawn(&self.launch).await?;
                }
                Err(error @ DevError::TimedOut { .. }) => {
                    self.stop(StopMode::Immediate).await;
                    return Err(error);
                }
                outcome => return outcome,
            }
        }
    }

    /// Tries to connect until it works, the server ends, or the time is over.
    async fn is_ready(&self, deadline: Instant, from: u64) -> Result<(), DevError> {
        let mut pause = Duration::from_millis(5);
        loop {
            if let Ok(Ok(_)) = timeout_at(deadline, self.connect()).await {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.launch.timed_out(START_DEADLINE.as_secs(), from));
            }
            tokio::select! {
                status = self.postmaster.exited() => return Err(self.launch.exited(status, from)),
                () = sleep(pause) => pause = (pause * 2).min(Duration::from_millis(200)),
            }
        }
    }

    async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url("postgres"), NoTls).await?;
        tokio::spawn(connection); // ends with the client
        Ok(client)
    }
}

/// The version that created the existing data.
fn made_by(config: &ClusterConfig) -> Result<Option<u32>, DevError> {
    let version = config.data_dir.as_deref().map(init::made_by).transpose()?.flatten();
    Ok(version.and_then(|version| version.parse().ok()))
}

/// Starts the server off the runtime's threads: it may have to wait for an orphan of a killed howdah first.
async fn spawn(launch: &Arc<Launch>) -> Result<(Postmaster, u64), DevError> {
    let launch = Arc::clone(launch);
    blocking(move || launch.spawn()).await
}
