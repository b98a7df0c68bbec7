//! A broker for one test.

use std::{env, ffi::OsStr, io, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::{Client, Error, Result};

/// How long it may take to start: a cluster of Postgres is made first.
const START: Duration = Duration::from_mins(1);

/// A broker with a Postgres of its own: `howdah dev --ephemeral`. Both end, and their data is removed, when it is dropped.
#[derive(Debug)]
pub struct Broker {
    /// Its address for clients.
    pub url: String,
    /// The URL of its database.
    pub database: String,
    /// Killed when dropped; its Postgres ends with it.
    _child: Child,
}

impl Broker {
    /// Starts the program that `HOWDAH_BIN` names, or else `howdah` on the `PATH`.
    pub async fn start() -> Result<Self> {
        Self::start_program(env::var_os("HOWDAH_BIN").unwrap_or_else(|| "howdah".into())).await
    }

    /// Starts this program.
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
        let stdout = child.stdout.take().ok_or_else(|| Error::broken("no standard output"))?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = async {
            while let Some(line) = lines.next_line().await? {
                if line.starts_with("ready ") {
                    return Ok(line);
                }
            }
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        let late = |_| Error::Deadline { what: "start of a broker", after: START };
        let line = tokio::time::timeout(START, ready).await.map_err(late)?.map_err(failed)?;
        let field =
            |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned();
        Ok(Self { url: field("grpc="), database: field("postgres="), _child: child })
    }

    /// A client of this broker.
    pub async fn client(&self) -> Result<Client> {
        Client::connect(&self.url).await
    }
}
