//! Runs processes that serve many jobs. Each job is a line of JSON on stdin, and each answer is a line of JSON on stdout.
//!
//! - `wire`: format of the lines
//! - `server`: one process and its jobs
//! - this module: the choice of a process for a job

mod server;
mod wire;

#[cfg(test)]
mod tests;

use std::{io, sync::Arc, time::Duration};

use howdah_client::{CancellationToken, Outcome};
use parking_lot::Mutex;
use tokio::{
    select,
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use self::server::{PendingAnswer, Server};
use super::{attempt::Attempt, process::Program};

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
    program: Arc<Program>,
    /// Maximum number of concurrent processes.
    max_processes: usize,
    replace: Replace,
    /// Kills the processes.
    kill: CancellationToken,
    pool: Mutex<Pool>,
    /// Signals that a process may have capacity for a waiting job.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Pool {
    servers: Vec<Arc<Server>>,
    /// Earliest time for the next start; `None` unless a process ended without any answer.
    start_at: Option<Instant>,
}

impl Lines {
    /// Creates a worker that starts processes as jobs arrive, at most `max_processes` at once. `kill` kills them.
    pub fn new(program: Program, max_processes: usize, replace: Replace, kill: CancellationToken) -> Self {
        Self {
            program: Arc::new(program),
            max_processes: max_processes.max(1),
            replace,
            kill,
            pool: Mutex::default(),
            changed: Arc::default(),
        }
    }

    /// Runs one job. If the attempt is stopped, the process receives a cancel line. If it does not answer within 5 s, it is ended,
    /// and its other jobs are released.
    pub async fn run(&self, attempt: &Attempt) -> Outcome {
        let assigned = select! {
            biased;
            () = attempt.stopped() => return Outcome::release(),
            assigned = self.assign(attempt) => assigned,
        };
        let mut answer = match assigned {
            Ok(answer) => answer,
            Err(error) => return Outcome::retry(format!("cannot start the process: {error}")),
        };
        select! {
            outcome = answer.outcome() => return outcome,
            () = attempt.stopped() => answer.cancel(),
        }
        if timeout(self.program.kill_after, answer.outcome()).await.is_err() {
            answer.end_process();
        }
        Outcome::release()
    }

    /// Gives the job to a process as soon as a process has capacity.
    async fn assign(&self, attempt: &Attempt) -> io::Result<PendingAnswer> {
        loop {
            // Registers for changes before `pick` looks at the processes, so that no change in between is missed.
            let changed = self.changed.notified();
            let start_at = {
                let mut pool = self.pool.lock();
                if let Some(answer) = self.pick(&mut pool, attempt)? {
                    return Ok(answer);
                }
                pool.start_at
            };
            select! {
                () = changed => {}
                () = sleep_until(start_at.unwrap_or_else(Instant::now)), if start_at.is_some() => {}
            }
        }
    }

    /// Gives the job to the least loaded process that does not already have it (from a lost lease), or to a new process. Returns
    /// `None` if no process has capacity.
    fn pick(&self, pool: &mut Pool, attempt: &Attempt) -> io::Result<Option<PendingAnswer>> {
        if let Some(failed_at) = pool.servers.iter().find_map(|server| server.failed_at()) {
            pool.start_at = Some(failed_at + RESTART_AFTER);
        }
        pool.servers.retain(|server| !server.takes_no_jobs(self.replace));
        let may_start = pool.servers.len() < self.max_processes && pool.start_at.is_none_or(|at| at <= Instant::now());
        if let Some(least) = pool.servers.iter().min_by_key(|server| server.load())
            && (least.load() == 0 || !may_start)
            && let Some(answer) = least.assign(attempt)
        {
            return Ok(Some(answer));
        }
        if !may_start {
            return Ok(None);
        }
        pool.start_at = None;
        let server = Server::start(&self.program, self.kill.child_token(), self.changed.clone())?;
        pool.servers.push(server.clone());
        Ok(server.assign(attempt))
    }

    /// Closes the stdin of the processes, which have 5 s to end. Called after the last job.
    pub async fn close(&self) {
        let servers = std::mem::take(&mut self.pool.lock().servers);
        let closing = servers.iter().map(|server| async move {
            if timeout(self.program.kill_after, server.close()).await.is_err() {
                server.end().await;
            }
        });
        futures::future::join_all(closing).await;
    }
}
