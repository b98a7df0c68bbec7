use std::io;
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::sync::watch;

/// Way of stopping Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Disconnects clients, rolls back their transactions, and writes a checkpoint (SIGINT).
    Fast,
    /// Ends immediately, as in a crash; the next start recovers (SIGQUIT).
    Immediate,
}

impl StopMode {
    pub(super) fn signal(self) -> Signal {
        match self {
            Self::Fast => Signal::INT,
            Self::Immediate => Signal::QUIT,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Immediate => "immediate",
        }
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        [Self::Fast, Self::Immediate].into_iter().find(|mode| mode.word() == word)
    }
}

/// Time that dropping a [`Postmaster`] waits for the end of the server before it sends the next stronger signal.
const DROP_PATIENCE: Duration = Duration::from_secs(10);

/// A server process, running or ended; stopped when dropped.
#[derive(Debug)]
pub(super) struct Postmaster {
    pid: Pid,
    at_end: StopMode,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Postmaster {
    /// Starts the command on a dedicated thread, which waits until the process ends.
    ///
    /// Linux sends the death signal when the *thread* that started the process ends. A runtime thread may end at any time; this one
    /// outlives the process.
    pub(super) fn spawn(mut command: Command, at_end: StopMode) -> io::Result<Self> {
        let (started, outcome) = mpsc::sync_channel(1);
        let (exited, exit) = watch::channel(None);
        let run = move || match command.spawn() {
            Err(error) => drop(started.send(Err(error))),
            Ok(mut child) => {
                drop(started.send(Ok(child.id())));
                exited.send_replace(Some(child.wait().unwrap_or_default()));
            }
        };
        thread::Builder::new().name("howdah-postgres".to_owned()).spawn(run)?;
        let pid = outcome.recv().map_err(io::Error::other)??;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pid.map(|pid| Self { pid, at_end, exit }).ok_or_else(|| io::Error::other("the new process has no valid pid"))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Exit status, if the process has ended.
    pub(super) fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits until the process has ended. Cancel-safe, and can be called repeatedly.
    pub(super) async fn exited(&self) -> ExitStatus {
        let mut exit = self.exit.clone();
        // The sender is dropped without a status only if its thread panicked; then the process counts as ended.
        exit.wait_for(Option::is_some).await.ok().and_then(|status| *status).unwrap_or_default()
    }

    /// Blocking version of [`Postmaster::exited`]; false after a timeout.
    fn is_gone_soon(&self) -> bool {
        let deadline = Instant::now() + DROP_PATIENCE;
        while self.exit_status().is_none() && self.exit.has_changed().is_ok() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Sends a signal unless the process has ended, because its pid may belong to another process.
    pub(super) fn signal(&self, signal: Signal) {
        if self.exit_status().is_none() {
            let _ = rustix::process::kill_process(self.pid, signal);
        }
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        for signal in [self.at_end.signal(), Signal::QUIT, Signal::KILL] {
            self.signal(signal);
            if self.is_gone_soon() {
                return;
            }
        }
    }
}
