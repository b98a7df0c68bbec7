//! `pgbench`, Postgres's own load generator: connections that run a script again and again, in slices. It stays connected
//! between them, stopped by a signal, so that no slice pays for connecting, for plans, or for a session's knowledge of tables.

use std::{
    env, fs,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::sleep,
};
use tokio_postgres::config::Host;

use super::Database;
use crate::error::{Error, Result};

/// The advisory lock at which connections wait when they are warm.
const GATE: i64 = 5_278_114_973_911;
/// How long connections may take to get there: each may have to read the definitions of thousands of tables.
const WARM: Duration = Duration::from_secs(300);
/// How long a statement may take that runs when it is stopped.
const PARK: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// Longer than any run.
const SECONDS: &str = "1000000";
const THREADS: &str = "2";

/// What `pgbench` runs.
#[derive(Debug)]
pub(crate) struct Script<'a> {
    /// The name of its sessions.
    pub(crate) name: &'static str,
    /// It first does what makes a connection warm, then asks for the lock `:gate`; `:cold` is 1 until then.
    pub(crate) text: &'a str,
    pub(crate) connections: usize,
    /// Besides `gate`, `cold` and `clients`.
    pub(crate) variables: &'a [(&'a str, String)],
}

/// A running `pgbench`, killed when dropped. It is stopped, until told to go.
#[derive(Debug)]
pub(crate) struct Pgbench {
    process: Child,
    /// The script, and what `pgbench` says.
    directory: TempDir,
    name: &'static str,
    database: Database,
}

impl Pgbench {
    /// Starts it, and waits until all its connections are warm.
    pub(crate) async fn start(database: &Database, script: Script<'_>) -> Result<Self> {
        let program = find(database).await?;
        let directory = tempfile::Builder::new().prefix("howdah-bench-").tempdir().map_err(failed)?;
        let (file, log) = (directory.path().join("script.sql"), directory.path().join("log"));
        fs::write(&file, script.text).map_err(failed)?;
        let log = fs::File::create(log).map_err(failed)?;
        let gate = database.again().await?;
        gate.execute(&format!("SELECT pg_advisory_lock({GATE})"), "the gate of pgbench").await?;
        let mut command = Command::new(program);
        connect_to(&mut command, database.url(), script.name)?;
        let (clients, mut variables) = (script.connections.to_string(), script.variables.to_vec());
        variables.extend([("gate", GATE.to_string()), ("cold", "1".into()), ("clients", clients.clone())]);
        command.args(["-n", "-M", "prepared", "-c", &clients, "-j", THREADS, "-T", SECONDS]);
        command.args(variables.iter().flat_map(|(name, value)| ["-D".to_owned(), format!("{name}={value}")]));
        command.arg("-f").arg(&file);
        // A group of its own: if we are killed while it is stopped, the system ends it.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().map_err(failed)?;
        let mut this = Self { process, directory, name: script.name, database: database.again().await? };
        let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                       WHERE l.locktype = 'advisory' AND NOT l.granted AND a.application_name = $1";
        this.until("its connections are not warm", WARM, waiting, script.connections as i64).await?;
        this.signal(Signal::STOP)?;
        drop(gate); // which opens it
        this.park().await?;
        Ok(this)
    }

    /// Lets it run.
    pub(crate) fn go(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Stops it, and waits until none of its statements runs, and none has for a while: on a busy machine a session may not have read yet
    /// what was sent to it.
    pub(crate) async fn park(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 \
                    AND (state <> 'idle' OR state_change > clock_timestamp() - interval '300 ms')";
        self.until("its statements do not end", PARK, busy, 0).await
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) {
        let _ = self.process.kill().await;
    }

    /// Waits until the query, which is given the name of the sessions, counts this many.
    async fn until(&mut self, problem: &str, most: Duration, query: &str, count: i64) -> Result<()> {
        let deadline = Instant::now() + most;
        while self.database.number(query, &[&self.name]).await? != count {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(self.error(&format!("it ended: {status}")));
            }
            if Instant::now() > deadline {
                return Err(self.error(&format!("{problem} within {most:?}")));
            }
            sleep(LOOK).await;
        }
        // One of whose connections fails goes on with the others.
        let said = self.said();
        if said.contains("aborted") { Err(self.error("a connection failed")) } else { Ok(()) }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn error(&self, why: &str) -> Error {
        let said = self.said();
        let last: Vec<&str> = said.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Error::Process(format!("pgbench ({}): {why}\n{}", self.name, last.join("\n")).trim_end().to_owned())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let sent = pid.is_some_and(|pid| kill_process(pid, signal).is_ok());
        if sent { Ok(()) } else { Err(self.error("it has ended")) }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Process(format!("pgbench: {error}"))
}

/// Beside the programs of this Postgres, or else in `PATH`.
async fn find(database: &Database) -> Result<PathBuf> {
    // Needs a right that not every user has.
    let beside = "SELECT setting FROM pg_config WHERE name = 'BINDIR'";
    let beside = database.text(beside, "pg_config").await.ok().filter(|folder| !folder.is_empty());
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = beside.iter().map(PathBuf::from).chain(env::split_paths(&path));
    folders.map(|folder| folder.join("pgbench")).find(|program| program.is_file()).ok_or_else(|| {
        let beside = beside.map_or_else(String::new, |folder| format!("in {folder}, nor "));
        Error::Process(format!(
            "there is no pgbench {beside}in PATH. It belongs to Postgres (some packages: postgresql-contrib)"
        ))
    })
}

/// By variables: other users see arguments, and there may be a password.
fn connect_to(command: &mut Command, url: &str, name: &str) -> Result<()> {
    let config: tokio_postgres::Config = url.parse().map_err(Error::postgres("the database URL"))?;
    match config.get_hosts().first() {
        Some(Host::Tcp(host)) => command.env("PGHOST", host),
        #[cfg(unix)]
        Some(Host::Unix(folder)) => command.env("PGHOST", folder),
        None => command.env_remove("PGHOST"),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    command.env("PGPORT", port.to_string()).env("PGAPPNAME", name);
    if let Some(user) = config.get_user() {
        command.env("PGUSER", user);
    }
    if let Some(database) = config.get_dbname() {
        command.env("PGDATABASE", database);
    }
    if let Some(password) = config.get_password() {
        command.env("PGPASSWORD", String::from_utf8_lossy(password).as_ref());
    }
    Ok(())
}
