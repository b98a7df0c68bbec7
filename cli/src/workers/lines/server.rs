//! Process that serves many jobs: its jobs, its answers and its end.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
};

use howdah_client::{CancellationToken, Outcome};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};

use super::{Replace, wire};
use crate::workers::{
    attempt::Attempt,
    process::{AfterOutput, Ended, Process, Program, Tail, read_line},
    reports::Reports,
};

/// Maximum length of an answer: a result of 1 MiB, in base64 or with every byte escaped.
const MAX_LINE: usize = 8 << 20;
/// Maximum number of cancelled jobs whose ids are remembered, so that late answers for them are not errors.
const MAX_CANCELLED: usize = 1024;

/// Running process with its jobs.
#[derive(Debug)]
pub(super) struct Server {
    state: Mutex<State>,
    begun: Instant,
    /// Ends the process gracefully: SIGTERM, then SIGKILL after `kill_after`.
    end: CancellationToken,
    /// Kills the process.
    kill: CancellationToken,
    ended: CancellationToken,
    /// Notified when a job or the process has ended, because a waiting job may then be assigned.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// Channel for lines to stdin. `None` when the process gets no more lines; its stdin is then closed.
    lines: Option<mpsc::UnboundedSender<Vec<u8>>>,
    jobs: HashMap<i64, PendingJob>,
    /// Ids of recently cancelled jobs, newest first. If an answer crosses the cancel line, the process answers this job a
    /// second time.
    cancelled: VecDeque<i64>,
    /// Number of assigned jobs.
    assigned: u64,
    has_answered: bool,
    /// Whether the process gets no more jobs, and its stdin is closed after its last job.
    is_retired: bool,
    /// Time at which the process ended without any answer, unless the worker stopped it.
    failed_at: Option<Instant>,
}

/// Job whose answer a caller waits for.
#[derive(Debug)]
struct PendingJob {
    done: oneshot::Sender<Outcome>,
    reports: Arc<Reports>,
}

/// Handle of a job that a process works on. Dropping it before the answer ends the process, because the process may still work
/// on the job.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    id: i64,
    server: Arc<Server>,
    answer: oneshot::Receiver<Outcome>,
}

impl PendingAnswer {
    /// Waits for the answer, or for the end of the process.
    pub(super) async fn outcome(&mut self) -> Outcome {
        (&mut self.answer).await.unwrap_or(Outcome::Release)
    }

    /// Sends a cancel line for the job.
    pub(super) fn cancel(&self) {
        let mut state = self.server.state.lock();
        state.cancelled.truncate(MAX_CANCELLED - 1);
        state.cancelled.push_front(self.id);
        if let Some(lines) = &state.lines {
            let _ = lines.send(wire::cancel(self.id));
        }
    }

    /// Ends the process gracefully. Its jobs are released.
    pub(super) fn end_process(&self) {
        self.server.end.cancel();
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        // The receiver is closed before the lookup, so that an answer cannot arrive in between.
        self.answer.close();
        if self.server.state.lock().jobs.get(&self.id).is_some_and(|job| job.done.is_closed()) {
            self.server.end.cancel();
        }
    }
}

impl State {
    /// Closes stdin, so that the process ends.
    fn close(&mut self) {
        self.lines = None;
    }

    /// Stops giving jobs to the process. Its stdin is closed when its last job is done.
    fn retire(&mut self) {
        self.is_retired = true;
        if self.jobs.is_empty() {
            self.close();
        }
    }

    /// Checks an answer for a job that the process does not have. It is an error, unless the job was cancelled.
    fn check_cancelled(&self, id: i64) -> Result<(), String> {
        // The answer may be meant for another job, which would then never get an outcome.
        if self.cancelled.contains(&id) {
            Ok(())
        } else {
            Err(format!("it answered for job {id}, which it does not have"))
        }
    }
}

impl Server {
    /// Starts a process, and the task that serves it until `kill` or its end.
    pub(super) fn start(
        program: &Arc<Program>,
        kill: CancellationToken,
        changed: Arc<Notify>,
    ) -> io::Result<Arc<Self>> {
        let process = program.start(program.command())?;
        let (lines, to_write) = mpsc::unbounded_channel();
        let server = Arc::new(Self {
            state: Mutex::new(State { lines: Some(lines), ..State::default() }),
            begun: Instant::now(),
            end: CancellationToken::new(),
            kill,
            ended: CancellationToken::new(),
            changed,
        });
        tokio::spawn(server.clone().serve(process, to_write, program.verbose));
        Ok(server)
    }

    /// Gives a job to the process. Returns `None` if it already has this job, or takes no more jobs.
    pub(super) fn assign(self: &Arc<Self>, attempt: &Attempt) -> Option<PendingAnswer> {
        let mut state = self.state.lock();
        let id = attempt.job.id;
        if state.jobs.contains_key(&id) || state.lines.as_ref()?.send(wire::job(attempt)).is_err() {
            return None;
        }
        let (done, answer) = oneshot::channel();
        state.jobs.insert(id, PendingJob { done, reports: attempt.reports.clone() });
        state.assigned += 1;
        Some(PendingAnswer { id, server: self.clone(), answer })
    }

    /// Returns the number of jobs that the process has.
    pub(super) fn load(&self) -> usize {
        self.state.lock().jobs.len()
    }

    /// Returns whether the process takes no more jobs, because it is ending or is to be replaced after its current jobs.
    pub(super) fn takes_no_jobs(&self, replace: Replace) -> bool {
        if self.is_stopped() || self.ended.is_cancelled() {
            return true;
        }
        let mut state = self.state.lock();
        if replace.after_jobs.is_some_and(|most| state.assigned >= most)
            || replace.after.is_some_and(|most| self.begun.elapsed() >= most)
        {
            state.retire();
        }
        state.is_retired
    }

    /// Returns the time at which the process ended without any answer, unless the worker stopped it.
    pub(super) fn failed_at(&self) -> Option<Instant> {
        self.state.lock().failed_at
    }

    /// Closes stdin after the last job, and waits until the process has ended.
    pub(super) async fn close(&self) {
        self.state.lock().retire();
        self.ended.cancelled().await;
    }

    /// Ends the process gracefully, and waits until it has ended.
    pub(super) async fn end(&self) {
        self.end.cancel();
        self.ended.cancelled().await;
    }

    /// Returns whether the worker ends the process.
    fn is_stopped(&self) -> bool {
        self.end.is_cancelled() || self.kill.is_cancelled()
    }

    async fn serve(self: Arc<Self>, mut process: Process, to_write: mpsc::UnboundedReceiver<Vec<u8>>, verbose: bool) {
        let (stdin, stdout, stderr) = process.pipes();
        // The writing task ends when the process closes its stdin, or when `lines` is set to `None`.
        let writing = tokio::spawn(write(stdin, to_write));
        let (mut tail, mut problem) = (Tail::default(), None);
        let reading = async {
            let errors = async {
                tail.read(stderr, verbose).await;
                Ok(())
            };
            // An invalid answer ends the reading of answers, and then the process.
            problem = tokio::try_join!(self.read(stdout), errors).err();
            // The process gets no more jobs, because its stdout has ended or an answer was invalid.
            self.state.lock().close();
            if problem.is_some() { AfterOutput::Terminate } else { AfterOutput::KillLater }
        };
        let Ended { status, .. } = process.run(reading, self.end.cancelled(), self.kill.cancelled()).await;
        writing.abort();
        let how = status.map_or_else(|error| error.to_string(), |status| tail.error(status));
        self.finish(problem.as_deref(), &how);
    }

    /// Reads answers to the end. Fails at the first invalid answer.
    async fn read(&self, stdout: Option<ChildStdout>) -> Result<(), String> {
        let Some(stdout) = stdout else { return Ok(()) };
        let (mut stdout, mut line) = (BufReader::new(stdout), Vec::new());
        while let Some(read) = read_line(&mut stdout, &mut line, MAX_LINE).await {
            read.map_err(|_| format!("it wrote a line of more than {MAX_LINE} bytes"))?;
            if !line.trim_ascii_start().starts_with(b"{") {
                let line = String::from_utf8_lossy(&line[..line.len().min(200)]);
                tracing::warn!(%line, "a line of the process is not an answer; ignoring it");
                continue;
            }
            let (id, answer) = wire::answer(&line).map_err(|problem| format!("its answer is invalid: {problem}"))?;
            self.answer(id, answer)?;
        }
        Ok(())
    }

    fn answer(&self, id: i64, answer: wire::Answer) -> Result<(), String> {
        let mut state = self.state.lock();
        match answer {
            wire::Answer::Progress(report) => match state.jobs.get(&id) {
                Some(pending) => pending.reports.add(report),
                None => return state.check_cancelled(id),
            },
            wire::Answer::Ended(outcome) => {
                let Some(pending) = state.jobs.remove(&id) else { return state.check_cancelled(id) };
                state.has_answered = true;
                if state.is_retired {
                    state.retire();
                }
                // Ignores the error if the caller has stopped waiting for this answer.
                let _ = pending.done.send(outcome);
                self.changed.notify_waiters();
            }
        }
        Ok(())
    }

    /// Ends the remaining attempts after the end of the process.
    fn finish(&self, problem: Option<&str>, how: &str) {
        let mut state = self.state.lock();
        state.close();
        if !self.is_stopped() && !state.has_answered {
            state.failed_at = Some(Instant::now());
        }
        let by_us = problem.is_none() && self.is_stopped();
        let jobs = std::mem::take(&mut state.jobs);
        if !by_us && !jobs.is_empty() {
            let problem = problem.unwrap_or_default();
            tracing::warn!(jobs = jobs.len(), problem, how, "the process ended before it answered for all of its jobs");
        }
        for pending in jobs.into_values() {
            let outcome = match problem {
                Some(problem) => Outcome::retry(format!("the process was ended: {problem}")),
                None if by_us => Outcome::release(),
                None => Outcome::retry(format!("the process ended while it had this job: {how}")),
            };
            let _ = pending.done.send(outcome);
        }
        drop(state);
        self.ended.cancel();
        self.changed.notify_waiters();
    }
}

/// Starts the command, then writes lines in batches.
async fn write(stdin: Option<ChildStdin>, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    let Some(mut stdin) = stdin else { return };
    let mut buffer = b"\n".to_vec();
    let mut batch = Vec::new();
    loop {
        // Ignores a write error: the process has closed its stdin, and its end will be reported to the waiting callers.
        if stdin.write_all(&buffer).await.is_err() {
            return;
        }
        buffer.clear();
        if lines.recv_many(&mut batch, 256).await == 0 {
            return;
        }
        batch.drain(..).for_each(|line| buffer.extend(line));
    }
}
