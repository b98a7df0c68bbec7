//! Runs a shell command for each job: payload on stdin, stdout is the result, the exit status is
//! the outcome.
//!
//! - `group`: the processes of one attempt
//! - `pipes`: what goes in and comes out
//! - `watchman`: ends them when the worker is killed
//! - here: how an attempt ends

mod group;
mod pipes;
mod watchman;

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    future::Future,
    io,
    os::unix::process::ExitStatusExt as _,
    pin::pin,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use howdah_client::{Job, Outcome};
use rustix::process::Signal;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

pub use watchman::{Watchman, run_if_watchman};

use self::{
    group::Group,
    pipes::{Captured, Pipes},
};

/// The largest result. More fails the job for good: a result cut short would be a lie.
pub const MAX_RESULT_BYTES: usize = 1 << 20;

/// How much of the end of stderr goes into the error.
pub const ERROR_TAIL_BYTES: usize = 4 << 10;

/// A command begins when a line comes, before its payload: when the watchman knows of it. Were we killed before,
/// nothing would have begun. (A shell reads a line from a pipe byte by byte: the rest is the command's.)
const GATE: &str = "read -r go && exec sh -c \"$1\"";

/// From the polite signal to the other.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// How long a process that has left the group may keep our pipes open after the command has ended.
const PIPES_AFTER: Duration = Duration::from_secs(5);

/// `EX_DATAERR` of sysexits.h: it would fail the next time too.
const EXIT_DATA_ERROR: i32 = 65;

/// The command, and how to run it.
#[derive(Clone, Debug)]
pub struct Exec {
    command: String,
    /// Lets stderr through to our own.
    verbose: bool,
    /// Kills what runs, which then goes back to the queue.
    give_up: CancellationToken,
    kill_after: Duration,
    watchman: Option<Arc<Watchman>>,
}

/// What a command is told of its job.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// `HOWDAH_JOB_ID`.
    pub id: i64,
    /// `HOWDAH_TASK_TYPE`.
    pub task_type: String,
    /// `HOWDAH_ATTEMPT`, from 1.
    pub attempt: u32,
    /// `HOWDAH_MAX_ATTEMPTS`.
    pub max_attempts: u32,
    /// `HOWDAH_HEADERS`, a JSON object.
    pub headers: HashMap<String, String>,
    /// Its stdin.
    pub payload: Bytes,
}

impl From<&Job> for Attempt {
    fn from(job: &Job) -> Self {
        Self {
            id: job.id,
            task_type: job.task_type.clone(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            headers: job.headers.clone(),
            payload: job.payload.clone(),
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Exit status 0: the result.
    Done(Bytes),
    /// Any other end: to be tried again.
    Failed(String),
    /// Exit status 65, or a result that is too large: not to be tried again.
    FailedForGood(String),
    /// The job was cancelled, timed out, or its lease was lost.
    Cancelled,
    /// This worker gave up: the job goes back.
    GivenUp,
}

impl Ending {
    /// As the broker is told. What a cancelled job returns is not looked at, unless its lease
    /// turns out to be alive: then it goes back.
    pub fn into_outcome(self) -> Outcome {
        match self {
            Self::Done(result) => Outcome::ack(result),
            Self::Failed(error) => Outcome::retry(error),
            Self::FailedForGood(error) => Outcome::fail(error),
            Self::Cancelled | Self::GivenUp => Outcome::release(),
        }
    }
}

impl Exec {
    /// Runs `command` by `sh -c`. When `give_up` fires, what runs is killed and goes back.
    pub fn new(command: impl Into<String>, verbose: bool, give_up: CancellationToken) -> Self {
        Self { command: command.into(), verbose, give_up, kill_after: KILL_AFTER, watchman: None }
    }

    /// The same, with somebody who ends the commands if this process is killed.
    #[must_use]
    pub fn watched_by(self, watchman: Arc<Watchman>) -> Self {
        Self { watchman: Some(watchman), ..self }
    }

    /// Runs the command for one job, to its end or until `cancelled`. Dropped on the way, it kills
    /// the command.
    pub async fn run(&self, attempt: &Attempt, cancelled: impl Future<Output = ()>) -> Ending {
        if self.give_up.is_cancelled() {
            return Ending::GivenUp;
        }
        let mut child = match self.spawn(attempt) {
            Ok(child) => child,
            Err(error) => return Ending::Failed(format!("cannot run sh: {error}")),
        };
        let group = Group::of(&child, self.watchman.clone());
        let mut captured = Captured::default();
        let pump = Pipes::of(&mut child, self.verbose).pump(attempt.payload.clone(), &mut captured);
        let end = self.supervise(&mut child, group, pump, cancelled).await;
        match end {
            Err(error) => Ending::Failed(format!("cannot wait for the command: {error}")),
            Ok(End { stopped: Some(ending), .. }) => ending,
            Ok(End { status, .. }) => ending(status, captured),
        }
    }

    fn spawn(&self, attempt: &Attempt) -> io::Result<Child> {
        Command::new("sh")
            .args(["-c", GATE, "sh", &self.command])
            .env("HOWDAH_JOB_ID", attempt.id.to_string())
            .env("HOWDAH_TASK_TYPE", &attempt.task_type)
            .env("HOWDAH_ATTEMPT", attempt.attempt.to_string())
            .env("HOWDAH_MAX_ATTEMPTS", attempt.max_attempts.to_string())
            .env("HOWDAH_HEADERS", serde_json::to_string(&attempt.headers).unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }

    /// Waits for the command's end, and sees to it when it has to end.
    async fn supervise(
        &self,
        child: &mut Child,
        mut group: Group,
        pump: impl Future<Output = Result<(), pipes::TooLarge>>,
        cancelled: impl Future<Output = ()>,
    ) -> io::Result<End> {
        let (mut pump, mut cancelled) = (pin!(pump), pin!(cancelled));
        let mut pumping = true;
        let mut stopped = None;
        // From the polite signal on.
        let mut kill_at: Option<Instant> = None;
        let status = loop {
            let kill_time = kill_at.unwrap_or_else(Instant::now);
            tokio::select! {
                status = child.wait() => break status?,
                result = &mut pump, if pumping => {
                    pumping = false;
                    if result.is_err() {
                        stopped = Some(too_large());
                        group.signal(Signal::KILL);
                    }
                }
                () = self.give_up.cancelled(), if stopped != Some(Ending::GivenUp) => {
                    stopped = Some(Ending::GivenUp);
                    kill_at = None;
                    group.signal(Signal::KILL);
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
        // The shell may be gone before those it started: what was asked politely gets its time,
        // anything else ends with the command. Once all are gone, the pipes end too.
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

struct End {
    status: ExitStatus,
    /// Why it did not end by itself.
    stopped: Option<Ending>,
}

fn too_large() -> Ending {
    Ending::FailedForGood(format!(
        "the command wrote more than {MAX_RESULT_BYTES} bytes to stdout, which is the largest result; \
         it was killed"
    ))
}

fn ending(status: ExitStatus, captured: Captured) -> Ending {
    if captured.is_too_large() {
        return too_large();
    }
    match status.code() {
        Some(0) => Ending::Done(captured.stdout.into()),
        Some(EXIT_DATA_ERROR) => Ending::FailedForGood(error_text(status, &captured)),
        _ => Ending::Failed(error_text(status, &captured)),
    }
}

/// The end of stderr, and how the command ended.
fn error_text(status: ExitStatus, captured: &Captured) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    };
    let said = captured.stderr.text();
    if said.is_empty() { how } else { format!("{said} ({how})") }
}
