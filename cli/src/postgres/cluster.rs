use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::binaries::{Binaries, Places};
use super::blocking;
use super::error::DevError;
use super::fetch::{Fetcher, choose};
use super::launch::{self, Launch};
use super::postmaster::{Postmaster, StopMode};
use super::settings::{self, ClusterConfig, SUPERUSER};

/// Maximum time for a start, including crash recovery.
const START_DEADLINE: Duration = Duration::from_mins(1);
/// Maximum time for a stop before a stronger signal follows.
const STOP_DEADLINE: Duration = Duration::from_mins(1);
const STOP_NOW_DEADLINE: Duration = Duration::from_secs(10);

/// Characters that need no escape in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A private Postgres. It ends when this value is dropped or this process ends, on Linux even by `kill -9`.
///
/// At the end, a persistent cluster is shut down cleanly. A temporary cluster is stopped immediately and removed; if this
/// process was killed, the next start removes it.
#[derive(Debug)]
pub struct Cluster {
    postmaster: Postmaster, // dropped, and so stopped, before its directories
    launch: Arc<Launch>,
}

impl Cluster {
    /// Starts a cluster and returns when it accepts connections. If the future is dropped earlier, no process and no incomplete
    /// cluster remains.
    pub async fn start(config: ClusterConfig) -> Result<Self, DevError> {
        let fetcher = Fetcher::of_this_machine(config.fetch.clone());
        let binaries = choose(Places::of_this_machine(config.binaries.as_deref()), &fetcher, made_by(&config)?).await?;
        let launch = Arc::new(blocking(move || Launch::prepare(&config, binaries)).await?);
        let (postmaster, from) = spawn(&launch).await?;
        let mut cluster = Self { postmaster, launch };
        cluster.become_ready(from).await?;
        Ok(cluster)
    }

    /// URL of a database of this cluster, for tokio-postgres and libpq.
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

    /// The data directory, which also contains the log `postgres.log`.
    pub fn data_dir(&self) -> &Path {
        &self.launch.data_dir
    }

    /// The programs of this cluster's Postgres.
    pub fn binaries(&self) -> &Binaries {
        &self.launch.binaries
    }

    /// Process id of the postmaster.
    pub fn pid(&self) -> u32 {
        self.postmaster.pid()
    }

    /// Creates a database unless it exists.
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

    /// Stops the server and returns when it has ended. After a timeout, sends stronger signals.
    pub async fn stop(&mut self, mode: StopMode) {
        let limit = if mode == StopMode::Fast { STOP_DEADLINE } else { STOP_NOW_DEADLINE };
        for (signal, limit) in
            [(mode.signal(), limit), (Signal::QUIT, STOP_NOW_DEADLINE), (Signal::KILL, STOP_DEADLINE)]
        {
            self.postmaster.signal(signal);
            if timeout(limit, self.postmaster.exited()).await.is_ok() {
                return;
            }
            tracing::warn!(pid = self.pid(), ?signal, "PostgreSQL has not stopped in time after this signal");
        }
    }

    /// Restarts the server with the same data and URL.
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
                // Starts Postgres again: the children of a killed postmaster use the data directory until their statements end.
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

    /// Tries to connect until it succeeds, the server ends, or the deadline passes.
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

/// Major version of Postgres that created the existing data; `None` without data.
fn made_by(config: &ClusterConfig) -> Result<Option<u32>, DevError> {
    let version = config.data_dir.as_deref().map(launch::made_by).transpose()?.flatten();
    Ok(version.and_then(|version| version.parse().ok()))
}

/// Starts the server on a blocking thread, because it may have to wait for a server that a killed howdah left running.
async fn spawn(launch: &Arc<Launch>) -> Result<(Postmaster, u64), DevError> {
    let launch = Arc::clone(launch);
    blocking(move || launch.spawn()).await
}
