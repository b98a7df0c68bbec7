//! Starts the private Postgres and the brokers with the program `howdah`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::Mutex,
};

use crate::certificates;

/// Timeout of a broker's start, including Postgres.
const START: Duration = Duration::from_secs(120);
/// Settings of all brokers: they notice faults quickly, but give workers on a slow machine time to reconnect.
const SETTINGS: &[&str] = &[
    "--set=liveness=20s",
    "--set=session_grace=30s",
    "--set=broker_lease=30s",
    "--set=drain_deadline=6s",
    "--pool-size=4",
    "--log=warn",
];

/// Brokers, files and databases that all scenarios share.
pub(crate) struct World {
    pub(crate) a: Broker,
    pub(crate) b: Broker,
    pub(crate) files: Files,
    /// Tokens for scenarios with authentication: two valid tokens, then a token that no broker knows.
    pub(crate) tokens: [String; 3],
    program: PathBuf,
    /// URLs of additional databases, by name.
    databases: Mutex<BTreeMap<String, String>>,
}

/// The temporary directory of certificates, token files and other files of brokers and clients.
pub(crate) struct Files {
    directory: TempDir,
}

impl Files {
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

impl World {
    pub(crate) async fn start(program: &Path) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        certificates::write(directory.path())?;
        let mut command = Command::new(program);
        command.args(["dev", "--ephemeral", "--name=a"]);
        let a = Broker::start(command, &[]).await?;
        let mut command = Command::new(program);
        command.args(["serve", "--name=b"]).env("HOWDAH_DATABASE_URL", &a.database);
        let b = Broker::start(command, &[]).await?;
        let tokens = [token(program).await?, token(program).await?, token(program).await?];
        Ok(Self { tokens, a, b, files: Files { directory }, program: program.to_owned(), databases: Mutex::default() })
    }

    /// Starts a broker for one scenario, on the shared database or on another one.
    pub(crate) async fn broker(&self, name: &str, database: Option<&str>, args: &[String]) -> Result<Broker, String> {
        let url = match database {
            Some(database) => self.database(database).await?,
            None => self.a.database.clone(),
        };
        let mut command = Command::new(&self.program);
        command.arg("serve").arg(format!("--name={name}")).env("HOWDAH_DATABASE_URL", url);
        Broker::start(command, args).await
    }

    /// Runs SQL statements in a database.
    pub(crate) async fn sql(&self, database: Option<&str>, text: &str) -> Result<(), String> {
        let url = match database {
            Some(database) => self.database(database).await?,
            None => self.a.database.clone(),
        };
        execute(&url, text).await
    }

    /// Returns the URL of the database with this name. Creates the database at its first use.
    async fn database(&self, name: &str) -> Result<String, String> {
        let mut databases = self.databases.lock().await;
        if let Some(url) = databases.get(name) {
            return Ok(url.clone());
        }
        execute(&self.a.database, &format!("CREATE DATABASE {name}")).await?;
        let url = other_database(&self.a.database, name);
        databases.insert(name.to_owned(), url.clone());
        Ok(url)
    }
}

async fn token(program: &Path) -> Result<String, String> {
    let made = Command::new(program).args(["token", "generate"]).stderr(Stdio::null()).output().await;
    let made = made.map_err(|error| format!("howdah token generate: {error}"))?;
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    let token = text.split_whitespace().find(|word| word.starts_with("hwd_"));
    token.map(str::to_owned).ok_or_else(|| format!("howdah token generate printed no token: {text:?}"))
}

async fn execute(url: &str, text: &str) -> Result<(), String> {
    let failed = |error: tokio_postgres::Error| format!("{text}: {error}");
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.map_err(failed)?;
    let connected = tokio::spawn(connection);
    client.batch_execute(text).await.map_err(failed)?;
    connected.abort();
    Ok(())
}

/// Returns the URL with another database name.
fn other_database(url: &str, name: &str) -> String {
    let (before, query) = url.split_once('?').unwrap_or((url, ""));
    let start = before.rfind('/').map_or(before.len(), |slash| slash + 1);
    format!("{}{name}?{query}", &before[..start])
}

/// A running broker. It is killed when dropped.
pub(crate) struct Broker {
    pub(crate) grpc: String,
    pub(crate) database: String,
    child: Mutex<Child>,
    pid: Option<Pid>,
}

impl Broker {
    async fn start(mut command: Command, args: &[String]) -> Result<Self, String> {
        command
            .args(["--listen=127.0.0.1:0", "--http=127.0.0.1:0"])
            .args(SETTINGS)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if std::env::var_os("HOWDAH_CONFORMANCE_LOGS").is_none() {
            command.stderr(Stdio::null());
        }
        let failed = |error: std::io::Error| format!("cannot start a broker: {error}");
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take().ok_or("bug: the broker was started without a pipe for standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await.map_err(failed)? {
                if line.starts_with("ready ") {
                    return Ok(line);
                }
            }
            Err("a broker ended before it was ready; set HOWDAH_CONFORMANCE_LOGS=1 to see its log".to_owned())
        };
        let ready = tokio::time::timeout(START, ready).await.map_err(|_| {
            format!("a broker was not ready within {START:?}; HOWDAH_CONFORMANCE_LOGS=1 shows its log")
        })??;
        // Keep reading standard output, because the broker would block when the pipe is full.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let field = |name: &str| {
            let found = ready.split(' ').find_map(|word| word.strip_prefix(name));
            found.map(str::to_owned).ok_or_else(|| format!("the broker's ready line has no {name}: {ready:?}"))
        };
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        Ok(Self { grpc: field("grpc=")?, database: field("postgres=")?, child: Mutex::new(child), pid })
    }

    /// Sends SIGTERM, after which the broker drains and ends.
    pub(crate) fn stop(&self) -> Result<(), String> {
        self.signal(Signal::TERM)
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&self) -> Result<(), String> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = self.pid.ok_or("cannot send a signal: the broker has already ended")?;
        kill_process(pid, signal).map_err(|error| error.to_string())
    }

    /// Waits until the broker process has ended. Returns false after the timeout.
    pub(crate) async fn ended(&self, within: Duration) -> bool {
        tokio::time::timeout(within, async { self.child.lock().await.wait().await }).await.is_ok()
    }

    /// The address of the broker without `http://`.
    pub(crate) fn host_and_port(&self) -> &str {
        self.grpc.rsplit('/').next().unwrap_or(&self.grpc)
    }
}
