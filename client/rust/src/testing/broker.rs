//! A temporary broker for a test.

use std::{
    env,
    ffi::OsStr,
    io,
    process::Stdio,
    time::{Duration, SystemTime},
};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::{Client, Error, Result};

/// Timeout for the broker to start, which includes initializing a Postgres cluster.
const START: Duration = Duration::from_mins(1);

/// A broker with a temporary Postgres: `howdah dev --ephemeral`. Dropping it stops both and removes their data.
#[derive(Debug)]
pub struct Broker {
    /// Address of the broker, for [`Client::connect`].
    pub url: String,
    /// URL of the broker's database.
    pub database: String,
    /// The broker's process. Dropping it kills the broker, and the broker's Postgres ends too.
    _child: Child,
}

impl Broker {
    /// Starts the program named by `HOWDAH_BIN`, or else `howdah` from the `PATH`.
    pub async fn start() -> Result<Self> {
        Self::start_program(env::var_os("HOWDAH_BIN").unwrap_or_else(|| "howdah".into())).await
    }

    /// Starts a broker with this program, regardless of `HOWDAH_BIN`.
    pub async fn start_program(program: impl AsRef<OsStr>) -> Result<Self> {
        let program = program.as_ref();
        let failed = |error: io::Error| Error::broken(format!("{}: {error}", program.display()));
        let mut child = Command::new(program)
            .args(["dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log", "warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout =
            child.stdout.take().ok_or_else(|| Error::broken("bug: the broker's standard output is not piped"))?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                if line.starts_with("ready ") {
                    return Ok(line);
                }
            }
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        let timed_out = |_| Error::Deadline { operation: "start of a broker", after: START };
        let line = tokio::time::timeout(START, ready).await.map_err(timed_out)?.map_err(failed)?;
        let field =
            |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned();
        Ok(Self { url: field("grpc="), database: field("postgres="), _child: child })
    }

    /// Connects a client to this broker.
    pub async fn client(&self) -> Result<Client> {
        Client::connect(&self.url).await
    }

    /// Advances the clock of the broker, so that delayed jobs, retries, schedules, deadlines and leases become due. Returns the
    /// new time.
    pub async fn advance(&self, duration: Duration) -> Result<SystemTime> {
        self.client().await?.advance_clock(duration).await
    }
}
