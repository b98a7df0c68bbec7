//! A `howdah` process that ends when the benchmark ends.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::ChildStdout,
    time::timeout,
};

use crate::error::{Error, Result};

/// Maximum time from the start of a process to its ready line. Long enough for initdb and migrations on a slow machine, and for
/// a download of Postgres.
const START: Duration = Duration::from_secs(600);
/// Time after SIGTERM at which a process that still runs is killed.
const STOP: Duration = Duration::from_secs(20);

/// Builds the command that runs a `howdah` program with the given arguments. Without a given program it runs the current
/// executable. The started process must end when this process is killed.
pub type Launcher = fn(Option<&Path>, &[String]) -> Command;

/// A running `howdah` process; killed when dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
    /// Kept open, because the `howdah` process fails when it writes to a closed pipe.
    _stdout: Lines<BufReader<ChildStdout>>,
    ready: String,
}

impl Child {
    /// Starts `howdah`, or another program, and waits for its ready line.
    pub(super) async fn start(
        launcher: Launcher,
        program: Option<&Path>,
        args: &[String],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = tokio::process::Command::from(launcher(program, args));
        // Remove `HOWDAH_*` variables, which are meant for other brokers and would affect the measurement.
        for (name, _) in std::env::vars_os() {
            let is_setting = name.to_str().is_some_and(|name| name.starts_with("HOWDAH_"));
            if is_setting && name != "HOWDAH_PG_BIN" && name != "HOWDAH_NO_FETCH" {
                command.env_remove(name);
            }
        }
        command.envs(env.iter().copied());
        // A separate process group, so that Ctrl-C reaches only the benchmark, which then stops its processes in order.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped());
        let name = args.first().map_or("", String::as_str).to_owned();
        let failed = |why: String| Error::Process(format!("howdah {name}: {why}"));
        let prefix = program.map(|program| format!("{}: ", program.display())).unwrap_or_default();
        let mut process = command.spawn().map_err(|error| failed(format!("{prefix}{error}")))?;
        let stdout = process.stdout.take().ok_or_else(|| failed("bug: standard output is not a pipe".into()))?;
        let mut stdout = BufReader::new(stdout).lines();
        let ready = match timeout(START, stdout.next_line()).await {
            Ok(Ok(Some(line))) if line.starts_with("ready ") => line,
            Ok(Ok(Some(line))) => return Err(failed(format!("printed {line:?} instead of its ready line"))),
            Ok(Ok(None)) => return Err(failed("ended before it was ready".into())),
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("printed no ready line within {START:?}"))),
        };
        Ok(Self { process, _stdout: stdout, ready })
    }

    /// Returns a field of the ready line.
    pub(super) fn field(&self, name: &str) -> Result<&str> {
        let found = self.ready.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.ok_or_else(|| Error::Process(format!("howdah: the ready line {:?} has no field {name}=", self.ready)))
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Stops the process with SIGTERM; kills it after a timeout.
    pub(super) async fn stop(mut self) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok()) {
            let _ = timeout(STOP, self.process.wait()).await;
        }
    }
}
