//! One process serves many jobs. Each job is a line of JSON on its stdin, each answer one on its stdout.
//!
//! - `wire`: the lines
//! - `process`: one process and its jobs
//! - here: which process gets a job, and the ending of an attempt

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

use self::process::{Process, Surroundings};
use super::{
    attempt::{Attempt, Ending},
    exec::{KILL_AFTER, StopTokens, Watchman},
    program::Program,
    reports::Reports,
};

/// The pause before a process is started to replace one that ended without an answer.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// When a process is replaced by a new one, which frees memory that it leaked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replace {
    /// After this many jobs.
    pub after_jobs: Option<u64>,
    /// After this time.
    pub after: Option<Duration>,
}

/// Processes that serve many jobs.
#[derive(Debug)]
pub struct Lines {
    surroundings: Arc<Surroundings>,
    /// The most processes at once.
    most: usize,
    replace: Replace,
    stop_tokens: StopTokens,
    kill_after: Duration,
    pool: Mutex<Pool>,
    /// Signals that a process may have capacity for a waiting job.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Pool {
    processes: Vec<Arc<Process>>,
    /// The earliest start, after a process that ended without an answer.
    start_at: Option<Instant>,
}

impl Lines {
    /// Starts processes as jobs come, at most `most` at once.
    pub fn new(program: Program, verbose: bool, most: usize, replace: Replace, stop_tokens: StopTokens) -> Self {
        Self {
            surroundings: Arc::new(Surroundings { program, verbose, watchman: None, kill_after: KILL_AFTER }),
            most: most.max(1),
            replace,
            stop_tokens,
            kill_after: KILL_AFTER,
            pool: Mutex::default(),
            changed: Arc::default(),
        }
    }

    /// With a watchman that ends the processes if this one is killed.
    #[must_use]
    pub fn watched_by(self, watchman: Arc<Watchman>) -> Self {
        let surroundings = Surroundings { watchman: Some(watchman), ..Surroundings::clone(&self.surroundings) };
        Self { surroundings: Arc::new(surroundings), ..self }
    }

    /// Runs one job. If it is cancelled, the process is told. If the process does not answer within 5 s, it is ended,
    /// and its other jobs are released.
    pub async fn run(&self, attempt: &Attempt, reports: &Arc<Reports>, cancelled: impl Future<Output = ()>) -> Ending {
        let mut cancelled = pin!(cancelled);
        if self.stop_tokens.at_once.is_cancelled() || self.stop_tokens.politely.is_cancelled() {
            return Ending::Released;
        }
        let given = tokio::select! {
            given = self.give(attempt, reports) => given,
            () = &mut cancelled => return Ending::Cancelled,
            () = self.stop_tokens.politely.cancelled() => return Ending::Released,
            () = self.stop_tokens.at_once.cancelled() => return Ending::Released,
        };
        let (process, mut asked) = match given {
            Ok(given) => given,
            Err(error) => return Ending::Failed(format!("cannot start the process: {error}")),
        };
        let stopped = tokio::select! {
            ending = asked.ended() => return ending,
            () = cancelled => Ending::Cancelled,
            () = self.stop_tokens.politely.cancelled() => Ending::Released,
            () = self.stop_tokens.at_once.cancelled() => {
                process.kill();
                return Ending::Released;
            }
        };
        process.cancel(attempt.id);
        tokio::select! {
            _ = asked.ended() => {}
            () = sleep(self.kill_after) => process.end(),
            () = self.stop_tokens.at_once.cancelled() => process.kill(),
        }
        stopped
    }

    /// Gives the job to a process as soon as one has capacity.
    async fn give(&self, attempt: &Attempt, reports: &Arc<Reports>) -> std::io::Result<(Arc<Process>, process::Asked)> {
        loop {
            // Changes from here on are noticed.
            let changed = self.changed.notified();
            let start_at = {
                let mut pool = self.pool.lock();
                if let Some(given) = self.pick(&mut pool, attempt, reports)? {
                    return Ok(given);
                }
                pool.start_at
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(start_at.unwrap_or_else(Instant::now)), if start_at.is_some() => {}
            }
        }
    }

    /// The least loaded process that does not have this job already (from a lost lease), or a new one.
    fn pick(
        &self,
        pool: &mut Pool,
        attempt: &Attempt,
        reports: &Arc<Reports>,
    ) -> std::io::Result<Option<(Arc<Process>, process::Asked)>> {
        if let Some(useless) = pool.processes.iter().find(|process| process.was_useless()) {
            pool.start_at = Some(useless.ended_at() + RESTART_AFTER);
        }
        pool.processes.retain(|process| !process.is_over(self.replace));
        let start_now = pool.start_at.is_none_or(|at| at <= Instant::now());
        let least = pool.processes.iter().min_by_key(|process| process.load()).cloned();
        if let Some(process) = least
            && (process.load() == 0 || pool.processes.len() >= self.most || !start_now)
            && let Some(asked) = process.ask(attempt, reports)
        {
            return Ok(Some((process, asked)));
        }
        if pool.processes.len() >= self.most || !start_now {
            return Ok(None);
        }
        pool.start_at = None;
        let process = Process::start(&self.surroundings, self.changed.clone())?;
        pool.processes.push(process.clone());
        Ok(process.ask(attempt, reports).map(|asked| (process, asked)))
    }

    /// No more jobs will come: closes the stdin of the processes, which have 5 s to end.
    pub async fn close(&self) {
        let processes = std::mem::take(&mut self.pool.lock().processes);
        processes.iter().for_each(|process| process.retire());
        for process in processes {
            let ended = async {
                tokio::select! {
                    () = process.wait() => {}
                    () = self.stop_tokens.at_once.cancelled() => process.kill(),
                }
            };
            if tokio::time::timeout(self.kill_after, ended).await.is_err() {
                process.end();
            }
            process.wait().await;
        }
    }
}
