//! `pgbench`, Postgres's load generator: connections that run a script repeatedly, in time slices. Between slices the process is
//! stopped by a signal and stays connected, so that no slice includes the cost of connecting, planning, or caching tables.

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

/// Advisory lock that connections wait for after their warm-up. Without it, the first connections would run the measured script
/// while others still warm up.
const GATE: i64 = 5_278_114_973_911;
/// Maximum warm-up time: each connection may have to read the definitions of thousands of tables.
const WARM: Duration = Duration::from_secs(300);
/// Maximum time for running statements to end after a stop.
const PARK: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Value of `-T`, longer than any run, because signals control when `pgbench` works.
const SECONDS: &str = "1000000";
const THREADS: &str = "2";

#[derive(Debug)]
pub(crate) struct Script<'a> {
    /// `application_name` of its sessions.
    pub(crate) name: &'static str,
    /// SQL that first warms up the connection while `:cold` is 1, then requests the lock `:gate`.
    pub(crate) text: &'a str,
    pub(crate) connections: usize,
    /// Variables of the script besides `gate`, `cold` and `clients`.
    pub(crate) variables: &'a [(&'a str, String)],
}

/// A `pgbench` process, killed when dropped. It stays stopped by `SIGSTOP` until [`Self::go`].
#[derive(Debug)]
pub(crate) struct Pgbench {
    process: Child,
    /// Holds the script and the log of `pgbench`.
    directory: TempDir,
    name: &'static str,
    database: Database,
}

impl Pgbench {
    /// Starts `pgbench`, waits until all its connections have finished their warm-up, and stops it.
    pub(crate) async fn start(database: &Database, script: Script<'_>) -> Result<Self> {
        let program = find(database).await?;
        let directory = tempfile::Builder::new().prefix("howdah-bench-").tempdir().map_err(failed)?;
        let (file, log) = (directory.path().join("script.sql"), directory.path().join("log"));
        fs::write(&file, script.text).map_err(failed)?;
        let log = fs::File::create(log).map_err(failed)?;
        let gate = database.another_connection().await?;
        gate.execute(&format!("SELECT pg_advisory_lock({GATE})"), "cannot take the advisory lock of pgbench").await?;
        let mut command = Command::new(program);
        connect_to(&mut command, database.url(), script.name)?;
        let (clients, mut variables) = (script.connections.to_string(), script.variables.to_vec());
        variables.extend([("gate", GATE.to_string()), ("cold", "1".into()), ("clients", clients.clone())]);
        command.args(["-n", "-M", "prepared", "-c", &clients, "-j", THREADS, "-T", SECONDS]);
        command.args(variables.iter().flat_map(|(name, value)| ["-D".to_owned(), format!("{name}={value}")]));
        command.arg("-f").arg(&file);
        // A separate process group: if this process is killed, the kernel sends SIGHUP to a stopped pgbench, which ends it.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().map_err(failed)?;
        let mut this = Self { process, directory, name: script.name, database: database.another_connection().await? };
        let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                       WHERE l.locktype = 'advisory' AND NOT l.granted AND a.application_name = $1";
        this.until("not all connections finished their warm-up", WARM, waiting, script.connections as i64).await?;
        this.signal(Signal::STOP)?;
        drop(gate); // releases the lock
        this.park().await?;
        Ok(this)
    }

    /// Continues the stopped `pgbench`.
    pub(crate) fn go(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Stops `pgbench` by `SIGSTOP`, and waits until all its sessions have been idle for 300 ms. On a busy machine a session
    /// may be idle because it has not yet read its next statement.
    pub(crate) async fn park(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 \
                    AND (state <> 'idle' OR state_change > clock_timestamp() - interval '300 ms')";
        self.until("the statements of pgbench did not end", PARK, busy, 0).await
    }

    /// Kills the `pgbench` process.
    pub(crate) async fn stop(mut self) {
        let _ = self.process.kill().await;
    }

    /// Waits until the query returns `count`. Parameter `$1` of the query is the `application_name` of the sessions.
    async fn until(&mut self, problem: &str, most: Duration, query: &str, count: i64) -> Result<()> {
        let deadline = Instant::now() + most;
        while self.database.number(query, &[&self.name]).await? != count {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(self.error(&format!("the process ended: {status}")));
            }
            if Instant::now() > deadline {
                return Err(self.error(&format!("{problem} within {most:?}")));
            }
            sleep(POLL).await;
        }
        // If a connection fails, pgbench continues with the other connections, so search its output for an abort.
        let output = self.output();
        if output.contains("aborted") { Err(self.error("one of the connections failed")) } else { Ok(()) }
    }

    fn output(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn error(&self, why: &str) -> Error {
        let output = self.output();
        let last: Vec<&str> = output.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Error::Process(format!("pgbench ({}): {why}\n{}", self.name, last.join("\n")).trim_end().to_owned())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let sent = pid.is_some_and(|pid| kill_process(pid, signal).is_ok());
        if sent { Ok(()) } else { Err(self.error("the process has ended")) }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Process(format!("pgbench: {error}"))
}

/// Finds `pgbench` in the program directory of this Postgres, or else in `PATH`.
async fn find(database: &Database) -> Result<PathBuf> {
    // Reading `pg_config` needs a privilege. Without it, look only in `PATH`.
    let beside = "SELECT setting FROM pg_config WHERE name = 'BINDIR'";
    let beside = database.text(beside, "pg_config").await.ok().filter(|folder| !folder.is_empty());
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = beside.iter().map(PathBuf::from).chain(env::split_paths(&path));
    folders.map(|folder| folder.join("pgbench")).find(|program| program.is_file()).ok_or_else(|| {
        let beside = beside.map_or_else(String::new, |folder| format!("in {folder} or "));
        Error::Process(format!(
            "no pgbench {beside}in PATH; it is part of Postgres (in some distributions: postgresql-contrib)"
        ))
    })
}

/// Sets the connection by environment variables, because other users can see arguments, and the URL may contain a password.
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
