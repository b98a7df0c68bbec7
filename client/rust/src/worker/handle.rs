//! Handles of a running worker, and the signals that stop it.

use std::io;

use tokio::sync::{mpsc, watch};

use crate::{Error, Result};

/// A handle of a running worker, to stop it, resize it and read its report. Clones control the same worker.
#[derive(Debug, Clone)]
pub struct WorkerHandle {
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) status: watch::Receiver<Status>,
}

/// A command to the worker.
#[derive(Debug)]
pub(crate) enum Command {
    Stop,
    Abort,
    Resize { task_type: String, jobs: usize },
}

/// State, counters and result of a worker, which its handles read.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) state: WorkerState,
    pub(crate) report: WorkerReport,
    /// The result of the worker; `None` until it has ended.
    pub(crate) result: Option<Result<WorkerReport>>,
}

/// The state of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerState {
    /// No stream is open.
    Connecting,
    /// A stream is open, and jobs arrive.
    Connected {
        /// The broker's name.
        broker: String,
        /// The session, which outlives the stream.
        session_id: String,
    },
    /// The worker has ended.
    Stopped,
}

/// Counters of a worker. Outcomes count once the broker has confirmed them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Jobs received.
    pub received: u64,
    /// Jobs that succeeded.
    pub acked: u64,
    /// Attempts that failed, with or without another attempt.
    pub failed: u64,
    /// Jobs snoozed.
    pub snoozed: u64,
    /// Jobs released, by their handlers or because the worker stopped.
    pub released: u64,
    /// Jobs whose lease was lost while they ran or before their outcome was stored.
    pub lost: u64,
    /// Jobs that the broker cancelled while this worker held them, or whose attempt passed its deadline.
    pub cancelled: u64,
    /// Jobs whose outcome was not confirmed when the worker ended.
    pub unconfirmed: u64,
    /// Streams opened after the first.
    pub reconnects: u64,
}

impl WorkerReport {
    /// Number of outcomes that the broker has stored.
    pub fn settled(&self) -> u64 {
        self.acked + self.failed + self.snoozed + self.released
    }
}

impl WorkerHandle {
    /// Stops gracefully. Accepts no more jobs, waits for the handlers (at most the [stop
    /// timeout](super::WorkerBuilder::stop_timeout)), sends the outcomes, and closes the stream.
    pub async fn stop(&self) -> Result<WorkerReport> {
        self.begin_stop();
        self.joined().await
    }

    /// Begins a graceful stop without waiting for its end.
    pub fn begin_stop(&self) {
        self.send(Command::Stop);
    }

    /// Stops at once: drops handlers at their next await point. Their jobs go to other workers after the session's grace time,
    /// and the attempts count.
    pub fn abort(&self) {
        self.send(Command::Abort);
    }

    /// Waits until the worker has ended or was stopped. Fails if the broker refuses the worker, or if it panicked.
    pub async fn joined(&self) -> Result<WorkerReport> {
        let mut status = self.status.clone();
        let ended = status.wait_for(|status| status.result.is_some()).await;
        ended.ok().and_then(|status| status.result.clone()).unwrap_or(Err(Error::Stopped("worker")))
    }

    /// Waits until a stream is open, or the worker has ended.
    pub async fn connected(&self) -> WorkerState {
        let mut status = self.status.clone();
        let open = status.wait_for(|status| status.state != WorkerState::Connecting).await;
        open.map_or(WorkerState::Stopped, |status| status.state.clone())
    }

    /// The worker's state.
    pub fn state(&self) -> WorkerState {
        self.status.borrow().state.clone()
    }

    /// The worker's counters.
    pub fn report(&self) -> WorkerReport {
        self.status.borrow().report.clone()
    }

    /// Changes the number of concurrent handlers of a type, at most the worker's, and its window. 0 pauses the type: running
    /// handlers continue, and waiting jobs go to other workers. A type without a handler is ignored.
    pub fn set_concurrency(&self, task_type: impl Into<String>, jobs: usize) {
        let task_type = task_type.into();
        self.send(Command::Resize { task_type, jobs });
    }

    /// Sends a command. It has no effect on a worker that has ended.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

/// Resolves on SIGTERM or Ctrl-C.
///
/// ```no_run
/// # async fn f(worker: howdah_client::Worker) -> howdah_client::Result<()> {
/// worker.run_until(howdah_client::shutdown_signal()).await?;
/// # Ok(()) }
/// ```
///
/// After the first call, these signals no longer terminate the program.
pub async fn shutdown_signal() {
    if let Err(error) = signalled().await {
        // Without a signal handler, the future never resolves. The signals then end the program at once, not gracefully.
        tracing::warn!(%error, "cannot listen for SIGTERM and Ctrl-C: they do not stop this program gracefully");
        std::future::pending::<()>().await;
    }
}

#[cfg(unix)]
async fn signalled() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn signalled() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
