//! Runs processes that serve many jobs. Each job is a line of JSON on stdin, and each answer is a line of JSON on stdout.
//!
//! - `wire`: format of the lines
//! - `process`: one process and its jobs
//! - this module: the choice of a process for a job, and the ending of an attempt

mod process;
mod wire;

#[cfg(test)]
mod tests;

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

pub(super) use self::wire::as_text;

use self::process::{Process, Settings};
use super::{
    attempt::{Attempt, Ending},
    exec::{KILL_AFTER, StopTokens, Watchman},
    program::Program,
    reports::Reports,
};

/// Pause before the next start after a process ended without any answer, so that a broken program is not restarted in a tight
/// loop.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Conditions for the replacement of a process, which frees leaked memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replace {
    /// Replaces a process after this many jobs.
    pub after_jobs: Option<u64>,
    /// Replaces a process after this time.
    pub after: Option<Duration>,
}

/// Worker with processes that serve many jobs.
#[derive(Debug)]
pub struct Lines {
    settings: Arc<Settings>,
    /// Maximum number of concurrent processes.
    max_processes: usize,
    replace: Replace,
    stop_tokens: StopTokens,
    pool: Mutex<Pool>,
    /// Signals that a process may have capacity for a waiting job.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Pool {
    processes: Vec<Arc<Process>>,
    /// Earliest time for the next start; `None` unless a process ended without any answer.
    start_at: Option<Instant>,
}

impl Lines {
    /// Creates a worker that starts processes as jobs arrive, at most `max_processes` at once.
    pub fn new(
        program: Program,
        verbose: bool,
        max_processes: usize,
        replace: Replace,
        stop_tokens: StopTokens,
    ) -> Self {
        Self {
            settings: Arc::new(Settings { program, verbose, watchman: None, kill_after: KILL_AFTER }),
            max_processes: max_processes.max(1),
            replace,
            stop_tokens,
            pool: Mutex::default(),
            changed: Arc::default(),
        }
    }

    /// Sets the watchman, which ends the processes if this process is killed.
    #[must_use]
    pub fn watched_by(self, watchman: Arc<Watchman>) -> Self {
        let settings = Settings { watchman: Some(watchman), ..Settings::clone(&self.settings) };
        Self { settings: Arc::new(settings), ..self }
    }

    /// Runs one job. If the job is cancelled, the process receives a cancel line. If it does not answer within 5 s, it is ended,
    /// and its other jobs are released.
    pub async fn run(&self, attempt: &Attempt, reports: &Arc<Reports>, cancelled: impl Future<Output = ()>) -> Ending {
        let mut cancelled = pin!(cancelled);
        if self.stop_tokens.immediate.is_cancelled() || self.stop_tokens.graceful.is_cancelled() {
            return Ending::Released;
        }
        let assigned = tokio::select! {
            assigned = self.assign(attempt, reports) => assigned,
            () = &mut cancelled => return Ending::Cancelled,
            () = self.stop_tokens.graceful.cancelled() => return Ending::Released,
            () = self.stop_tokens.immediate.cancelled() => return Ending::Released,
        };
        let (process, mut answer) = match assigned {
            Ok(assigned) => assigned,
            Err(error) => return Ending::Failed(format!("cannot start the process: {error}")),
        };
        let stopped = tokio::select! {
            ending = answer.ended() => return ending,
            () = cancelled => Ending::Cancelled,
            () = self.stop_tokens.graceful.cancelled() => Ending::Released,
            () = self.stop_tokens.immediate.cancelled() => {
                process.kill();
                return Ending::Released;
            }
        };
        process.cancel(attempt.id);
        tokio::select! {
            _ = answer.ended() => {}
            () = sleep(self.settings.kill_after) => process.end(),
            () = self.stop_tokens.immediate.cancelled() => process.kill(),
        }
        stopped
    }

    /// Gives the job to a process as soon as a process has capacity.
    async fn assign(
        &self,
        attempt: &Attempt,
        reports: &Arc<Reports>,
    ) -> std::io::Result<(Arc<Process>, process::PendingAnswer)> {
        loop {
            // Registers for changes before `pick` looks at the processes, so that no change in between is missed.
            let changed = self.changed.notified();
            let start_at = {
                let mut pool = self.pool.lock();
                if let Some(assigned) = self.pick(&mut pool, attempt, reports)? {
                    return Ok(assigned);
                }
                pool.start_at
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(start_at.unwrap_or_else(Instant::now)), if start_at.is_some() => {}
            }
        }
    }

    /// Returns the least loaded process that does not already have this job (from a lost lease), or a new process.
    fn pick(
        &self,
        pool: &mut Pool,
        attempt: &Attempt,
        reports: &Arc<Reports>,
    ) -> std::io::Result<Option<(Arc<Process>, process::PendingAnswer)>> {
        if let Some(ended) = pool.processes.iter().find(|process| process.ended_without_answer()) {
            pool.start_at = Some(ended.ended_at() + RESTART_AFTER);
        }
        pool.processes.retain(|process| !process.takes_no_jobs(self.replace));
        let start_now = pool.start_at.is_none_or(|at| at <= Instant::now());
        let least = pool.processes.iter().min_by_key(|process| process.load()).cloned();
        if let Some(process) = least
            && (process.load() == 0 || pool.processes.len() >= self.max_processes || !start_now)
            && let Some(answer) = process.assign(attempt, reports)
        {
            return Ok(Some((process, answer)));
        }
        if pool.processes.len() >= self.max_processes || !start_now {
            return Ok(None);
        }
        pool.start_at = None;
        let process = Process::start(&self.settings, self.changed.clone())?;
        pool.processes.push(process.clone());
        Ok(process.assign(attempt, reports).map(|answer| (process, answer)))
    }

    /// Closes the stdin of the processes, which have 5 s to end. Called after the last job.
    pub async fn close(&self) {
        let processes = std::mem::take(&mut self.pool.lock().processes);
        processes.iter().for_each(|process| process.retire());
        for process in processes {
            let ended = async {
                tokio::select! {
                    () = process.wait() => {}
                    () = self.stop_tokens.immediate.cancelled() => process.kill(),
                }
            };
            if tokio::time::timeout(self.settings.kill_after, ended).await.is_err() {
                process.end();
            }
            process.wait().await;
        }
    }
}
