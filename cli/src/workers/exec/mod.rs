//! Runs one process per job. The payload is its stdin, its stdout is the result, and its exit status determines the outcome.
//! Lines on file descriptor 3 report progress, or name the next stage.
//!
//! - `group`: process group of one attempt
//! - `pipes`: streams of a command
//! - `watchman`: ends commands if the worker is killed
//! - this module: the ending of an attempt

mod group;
mod pipes;
mod watchman;

#[cfg(test)]
mod tests;

use std::{
    future::Future, io, os::unix::process::ExitStatusExt as _, pin::pin, process::ExitStatus, sync::Arc, time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use command_fds::{CommandFdExt as _, FdMapping};
use rustix::process::Signal;
use tokio::{
    net::unix::pipe,
    process::{Child, Command},
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

pub(super) use self::{group::Group, pipes::Tail};
pub use watchman::{Watchman, run_if_watchman};

use self::pipes::{Captured, Pipes};
use super::{
    attempt::{Attempt, Ending},
    program::Program,
    reports::Reports,
};

/// Default maximum size of a result in bytes. With more, the job fails for good, because a truncated result would be wrong.
pub const MAX_RESULT_BYTES: usize = 1 << 20;

/// Maximum bytes of the end of stderr in an error.
pub const ERROR_TAIL_BYTES: usize = 4 << 10;

/// Time from SIGTERM to SIGKILL.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);

/// Maximum time to read the pipes after the end of the command. Processes that have left the group may keep them open.
pub(super) const PIPES_AFTER: Duration = Duration::from_secs(5);

/// `EX_DATAERR` of sysexits.h: the job fails for good.
const EXIT_DATA_ERROR: i32 = 65;

/// File descriptor on which a command reports progress.
const PROGRESS_FD: i32 = 3;

/// Cancellation tokens that end running jobs when the worker stops. The jobs are released.
#[derive(Clone, Debug, Default)]
pub struct StopTokens {
    /// Ends jobs gracefully: SIGTERM, and SIGKILL 5 s later.
    pub graceful: CancellationToken,
    /// Ends jobs immediately, without waiting for the graceful stop.
    pub immediate: CancellationToken,
}

/// Worker that runs a command for each job.
#[derive(Clone, Debug)]
pub struct Exec {
    program: Program,
    /// Whether to copy the command's stderr to the worker's stderr.
    verbose: bool,
    stop_tokens: StopTokens,
    kill_after: Duration,
    max_result: usize,
    watchman: Option<Arc<Watchman>>,
}

impl Exec {
    /// Creates a worker that runs a program for each job.
    pub fn new(program: Program, verbose: bool, stop_tokens: StopTokens) -> Self {
        Self { program, verbose, stop_tokens, kill_after: KILL_AFTER, max_result: MAX_RESULT_BYTES, watchman: None }
    }

    /// Sets the watchman, which ends the commands if this process is killed.
    #[must_use]
    pub fn watched_by(self, watchman: Arc<Watchman>) -> Self {
        Self { watchman: Some(watchman), ..self }
    }

    /// Sets the maximum size of stdout in bytes.
    #[must_use]
    pub fn with_max_result(self, bytes: usize) -> Self {
        Self { max_result: bytes, ..self }
    }

    /// Runs the command for one job, to its end or until `cancelled`. If the future is dropped, the command is killed.
    pub async fn run(&self, attempt: &Attempt, reports: &Reports, cancelled: impl Future<Output = ()>) -> Ending {
        if self.stop_tokens.immediate.is_cancelled() || self.stop_tokens.graceful.is_cancelled() {
            return Ending::Released;
        }
        let (mut child, progress) = match self.spawn(attempt) {
            Ok(spawned) => spawned,
            Err(error) => return Ending::Failed(format!("cannot start the command: {error}")),
        };
        let group = Group::new(&child, self.watchman.clone());
        let mut captured = Captured::new(self.max_result);
        let pipes = Pipes::new(&mut child, progress, self.verbose);
        let pump = pipes.pump(attempt.payload.clone(), &mut captured, reports);
        let end = self.supervise(&mut child, group, pump, cancelled).await;
        match end {
            Err(error) => Ending::Failed(format!("cannot wait for the command: {error}")),
            Ok(End { stopped: Some(ending), .. }) => ending,
            Ok(End { status, .. }) => ending(status, captured),
        }
    }

    /// Starts the process. Also returns the reading end of its file descriptor 3.
    fn spawn(&self, attempt: &Attempt) -> io::Result<(Child, pipe::Receiver)> {
        let (theirs, ours) = pipe::pipe()?;
        let mut command = self.program.starting_on_line();
        describe(&mut command, attempt);
        let mapping = FdMapping { parent_fd: theirs.into_blocking_fd()?, child_fd: PROGRESS_FD };
        command.fd_mappings(vec![mapping]).map_err(io::Error::other)?;
        // `command` owns this process's copy of the writing end, and closes it on drop. Otherwise the pipe would never end.
        Ok((command.spawn()?, ours))
    }

    /// Waits until the command ends, and stops it if necessary.
    async fn supervise(
        &self,
        child: &mut Child,
        mut group: Group,
        pump: impl Future<Output = Result<(), pipes::TooLarge>>,
        cancelled: impl Future<Output = ()>,
    ) -> io::Result<End> {
        let (mut pump, mut cancelled) = (pin!(pump), pin!(cancelled));
        let mut pumping = true;
        let mut killed = false;
        let mut stopped = None;
        // Time of the SIGKILL; set when SIGTERM is sent.
        let mut kill_at: Option<Instant> = None;
        let status = loop {
            let kill_time = kill_at.unwrap_or_else(Instant::now);
            tokio::select! {
                status = child.wait() => break status?,
                result = &mut pump, if pumping => {
                    pumping = false;
                    if result.is_err() {
                        stopped = Some(too_large(self.max_result));
                        group.signal(Signal::KILL);
                    }
                }
                () = self.stop_tokens.immediate.cancelled(), if !killed => {
                    (killed, kill_at) = (true, None);
                    stopped.get_or_insert(Ending::Released);
                    group.signal(Signal::KILL);
                }
                () = self.stop_tokens.graceful.cancelled(), if stopped.is_none() => {
                    stopped = Some(Ending::Released);
                    kill_at = Some(Instant::now() + self.kill_after);
                    group.signal(Signal::TERM);
                }
                () = &mut cancelled, if stopped.is_none() => {
                    stopped = Some(Ending::Cancelled);
                    kill_at = Some(Instant::now() + self.kill_after);
                    group.signal(Signal::TERM);
                }
                () = sleep_until(kill_time), if kill_at.is_some() => {
                    kill_at = None;
                    group.signal(Signal::KILL);
                }
            }
        };
        // The shell may end before the processes that it started, and the pipes end only with all of these. If the worker has
        // sent SIGTERM, the processes have until `kill_at` to end. After a normal end of the shell, they are killed at once.
        if let (Some(kill_at), true) = (kill_at, pumping) {
            pumping = timeout_at(kill_at, &mut pump).await.is_err();
        }
        group.finish();
        if pumping {
            let _ = timeout_at(Instant::now() + PIPES_AFTER, pump).await;
        }
        Ok(End { status, stopped })
    }
}

/// Sets the environment variables that describe the job.
fn describe(command: &mut Command, attempt: &Attempt) {
    command
        .env("HOWDAH_JOB_ID", attempt.id.to_string())
        .env("HOWDAH_TASK_TYPE", &attempt.task_type)
        .env("HOWDAH_ATTEMPT", attempt.attempt.to_string())
        .env("HOWDAH_MAX_ATTEMPTS", attempt.max_attempts.to_string())
        .env("HOWDAH_HEADERS", serde_json::to_string(&attempt.headers).unwrap_or_default())
        .env("HOWDAH_TAGS", serde_json::to_string(&attempt.tags).unwrap_or_default())
        .env("HOWDAH_CHECKPOINT", STANDARD.encode(&attempt.checkpoint));
    if let Some(results) = &attempt.results {
        command.env("HOWDAH_RESULTS", results.path());
    }
}

struct End {
    status: ExitStatus,
    /// Ending of the attempt if the worker stopped the command.
    stopped: Option<Ending>,
}

fn too_large(most: usize) -> Ending {
    Ending::FailedForGood(format!(
        "the command wrote more than {most} bytes to stdout, the maximum size of a result; it was killed"
    ))
}

fn ending(status: ExitStatus, captured: Captured) -> Ending {
    if captured.is_too_large() {
        return too_large(captured.max_result);
    }
    match status.code() {
        Some(0) => Ending::done(captured.stdout.into(), captured.next_stage),
        Some(EXIT_DATA_ERROR) => Ending::FailedForGood(error_text(status, &captured.stderr)),
        _ => Ending::Failed(error_text(status, &captured.stderr)),
    }
}

/// Returns the error of a failed attempt: the end of stderr, and the exit status or the signal.
pub(super) fn error_text(status: ExitStatus, stderr: &Tail) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    };
    let text = stderr.text();
    if text.is_empty() { how } else { format!("{text} ({how})") }
}
