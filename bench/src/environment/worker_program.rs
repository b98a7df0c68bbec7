//! A worker in any language: a shell command that runs until SIGTERM.

use std::{
    fs,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::gauge::{cpu_of, resident};
use crate::error::{Error, Result};

/// Time that the worker gets to stop after SIGTERM.
const STOP: Duration = Duration::from_secs(20);

/// A running worker with all its child processes; killed when dropped.
#[derive(Debug)]
pub(crate) struct WorkerProgram {
    shell: Child,
    group: u32,
}

/// Resource usage of a worker's processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Processor seconds.
    pub(crate) cpu: f64,
    /// Resident bytes.
    pub(crate) resident: u64,
}

impl WorkerProgram {
    /// Starts the worker with these environment variables. Its output goes to standard error, because results go to standard
    /// output.
    pub(crate) fn start(command: &str, variables: &[(&str, &str)]) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).envs(variables.iter().copied());
        shell.process_group(0).kill_on_drop(true).stdin(Stdio::null()).stdout(std::io::stderr());
        let shell = shell.spawn().map_err(|error| Error::Process(format!("sh: {error}")))?;
        let group = shell.id().ok_or_else(|| Error::Process("the worker ended right after its start".into()))?;
        Ok(Self { shell, group })
    }

    /// Fails if the worker has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.shell.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::Process(format!("the worker ended too early: {status}"))),
            Err(error) => Err(Error::Process(format!("the worker: {error}"))),
        }
    }

    /// Resource usage so far. Zero on systems without `/proc`.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            if let Some(cpu) = cpu_of(pid, Some(self.group)) {
                usage.cpu += cpu;
                usage.resident += resident(pid).unwrap_or_default();
            }
        }
        usage
    }

    /// Stops the worker with SIGTERM.
    pub(crate) async fn stop(mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM);
        match timeout(STOP, self.shell.wait()).await {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(error)) => Err(Error::Process(format!("the worker: {error}"))),
            Err(_) => Err(Error::Process(format!("the worker did not end within {STOP:?} of SIGTERM"))),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.group.cast_signed()) {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for WorkerProgram {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
