//! A worker in any language: a command, run by a shell, that works until it is told to stop.

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

/// How long it may take to stop before it is killed.
const STOP: Duration = Duration::from_secs(20);

/// A running worker, with all processes that it has started; killed when dropped.
#[derive(Debug)]
pub(crate) struct WorkerProgram {
    shell: Child,
    group: u32,
}

/// What the processes of a worker use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// Processor seconds.
    pub(crate) cpu: f64,
    /// Resident bytes.
    pub(crate) resident: u64,
}

impl WorkerProgram {
    /// Starts it with these variables. What it prints goes to standard error, since results go to standard output.
    pub(crate) fn start(command: &str, variables: &[(&str, &str)]) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).envs(variables.iter().copied());
        shell.process_group(0).kill_on_drop(true).stdin(Stdio::null()).stdout(std::io::stderr());
        let shell = shell.spawn().map_err(|error| Error::Process(format!("sh: {error}")))?;
        let group = shell.id().ok_or_else(|| Error::Process("the worker has ended already".into()))?;
        Ok(Self { shell, group })
    }

    /// Fails if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.shell.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::Process(format!("the worker ended too early: {status}"))),
            Err(error) => Err(Error::Process(format!("the worker: {error}"))),
        }
    }

    /// What it has used so far. Empty on systems without `/proc`.
    pub(crate) fn used(&self) -> Used {
        let mut used = Used::default();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            if let Some(cpu) = cpu_of(pid, Some(self.group)) {
                used.cpu += cpu;
                used.resident += resident(pid).unwrap_or_default();
            }
        }
        used
    }

    /// Stops it with SIGTERM.
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
