//! One process for many jobs: each job is a line of JSON on its stdin, each answer one on its stdout.
//!
//! - `wire`: the lines
//! - `process`: one process: what it is asked, what it answers, how it ends
//! - here: which process a job goes to, and how an attempt ends

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

/// Pause before a process is started in place of one that ended without having answered anything.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// When a process is replaced by a new one: what grows in it is given back then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replace {
    /// After so many jobs.
    pub after_jobs: Option<u64>,
    /// After so long.
    pub after: Option<Duration>,
}

/// Processes that serve many jobs.
#[derive(Debug)]
pub struct Lines {
    surroundings: Arc<Surroundings>,
    /// Processes at once.
    most: usize,
    replace: Replace,
    stop_tokens: StopTokens,
    kill_after: Duration,
    pool: Mutex<Pool>,
    /// A process has room for a job that had to wait.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Pool {
    processes: Vec<Arc<Process>>,
    /// Not before: the last one came to nothing.
    start_at: Option<Instant>,
}

impl Lines {
    /// Starts processes as jobs come, `most` at once.
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

    /// The same, with somebody who ends the processes if this one is killed.
    #[must_use]
    pub fn watched_by(self, watchman: Arc<Watchman>) -> Self {
        let surroundings = Surroundings { watchman: Some(watchman), ..Surroundings::clone(&self.surroundings) };
        Self { surroundings: Arc::new(surroundings), ..self }
    }

    /// Has one job done. When it is cancelled, the process is told; one that does not answer within 5 s is
    /// ended, and its other jobs go back.
    pub async fn run(&self, attempt: &Attempt, reports: &Arc<Reports>, cancelled: impl Future<Output = ()>) -> Ending {
        let mut cancelled = pin!(cancelled);
        if self.stop_tokens.at_once.is_cancelled() || self.stop_tokens.politely.is_cancelled() {
            return Ending::GivenUp;
        }
        let given = tokio::select! {
            given = self.give(attempt, reports) => given,
            () = &mut cancelled => return Ending::Cancelled,
            () = self.stop_tokens.politely.cancelled() => return Ending::GivenUp,
            () = self.stop_tokens.at_once.cancelled() => return Ending::GivenUp,
        };
        let (process, mut asked) = match given {
            Ok(given) => given,
            Err(error) => return Ending::Failed(format!("cannot start the process: {error}")),
        };
        let stopped = tokio::select! {
            ending = asked.ended() => return ending,
            () = cancelled => Ending::Cancelled,
            () = self.stop_tokens.politely.cancelled() => Ending::GivenUp,
            () = self.stop_tokens.at_once.cancelled() => {
                process.kill();
                return Ending::GivenUp;
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

    /// Gives the job to a process, as soon as one can take it.
    async fn give(&self, attempt: &Attempt, reports: &Arc<Reports>) -> std::io::Result<(Arc<Process>, process::Asked)> {
        loop {
            // What changes from here on is noticed.
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

    /// To the least loaded process that has not this job already (from a lease that it lost), or a new one.
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

    /// No more jobs: the processes are told by the end of their stdin, and have 5 s.
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
