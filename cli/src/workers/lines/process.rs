//! Process that serves many jobs: its jobs, its answers and its end.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::{Notify, mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        attempt::{Attempt, Ending},
        bounded_lines::BoundedLines,
        exec::{Group, PIPES_AFTER, Tail, Watchman, error_text},
        program::Program,
        reports::Reports,
    },
    Replace, wire,
};

/// Maximum length of an answer: a result of 1 MiB, in base64 or with every byte escaped.
const MAX_LINE: usize = 8 << 20;
/// Maximum number of cancelled jobs whose ids are remembered, so that late answers for them are not errors.
const MAX_CANCELLED: usize = 1024;

/// Settings of all processes.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) program: Program,
    pub(super) verbose: bool,
    pub(super) watchman: Option<Arc<Watchman>>,
    pub(super) kill_after: Duration,
}

/// Running process.
#[derive(Debug)]
pub(super) struct Process {
    /// Channel for lines to stdin. `None` when the process gets no more lines; its stdin is then closed.
    lines: Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>,
    jobs: Mutex<HashMap<i64, PendingJob>>,
    /// Ids of recently cancelled jobs, newest first. If an answer crosses the cancel line, the process answers this job a
    /// second time.
    cancelled: Mutex<VecDeque<i64>>,
    begun: Instant,
    given: AtomicU64,
    answered: AtomicU64,
    /// Ends the process gracefully: SIGTERM, then SIGKILL after `kill_after`.
    end: CancellationToken,
    kill: CancellationToken,
    /// Time at which the process ended; `None` while it runs.
    ended_at: Mutex<Option<Instant>>,
    ended: CancellationToken,
    /// Notified when a job or the process has ended, because a waiting job may then be assigned.
    changed: Arc<Notify>,
}

/// Job whose answer a caller waits for.
#[derive(Debug)]
struct PendingJob {
    done: oneshot::Sender<Ending>,
    reports: Arc<Reports>,
}

/// Handle of a job that a process works on. Dropping it before the answer ends the process, because the process may still work
/// on the job.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    id: i64,
    process: Arc<Process>,
    answer: oneshot::Receiver<Ending>,
    answered: bool,
}

impl PendingAnswer {
    /// Waits for the answer.
    pub(super) async fn ended(&mut self) -> Ending {
        let ending = (&mut self.answer).await;
        self.answered = true;
        ending.unwrap_or(Ending::Released)
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        if !self.answered && self.process.jobs.lock().contains_key(&self.id) {
            self.process.end();
        }
    }
}

impl Process {
    /// Starts a process and the tasks for its pipes.
    pub(super) fn start(settings: &Arc<Settings>, changed: Arc<Notify>) -> io::Result<Arc<Self>> {
        let mut child = settings.program.starting_on_line().spawn()?;
        let group = Group::new(&child, settings.watchman.clone());
        let (lines, to_write) = mpsc::unbounded_channel();
        let process = Arc::new(Self {
            lines: Mutex::new(Some(lines)),
            jobs: Mutex::default(),
            cancelled: Mutex::default(),
            begun: Instant::now(),
            given: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            end: CancellationToken::new(),
            kill: CancellationToken::new(),
            ended_at: Mutex::new(None),
            ended: CancellationToken::new(),
            changed,
        });
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        tracing::debug!(pid = child.id(), "process started");
        tokio::spawn(process.clone().serve(child, group, pipes, to_write, settings.clone()));
        Ok(process)
    }

    /// Gives a job to the process. Returns `None` if it already has this job, or takes no more jobs.
    pub(super) fn assign(self: &Arc<Self>, attempt: &Attempt, reports: &Arc<Reports>) -> Option<PendingAnswer> {
        let lines = self.lines.lock();
        let mut jobs = self.jobs.lock();
        if jobs.contains_key(&attempt.id) || lines.as_ref()?.send(wire::job(attempt)).is_err() {
            return None;
        }
        let (done, answer) = oneshot::channel();
        jobs.insert(attempt.id, PendingJob { done, reports: reports.clone() });
        self.given.fetch_add(1, Ordering::Relaxed);
        Some(PendingAnswer { id: attempt.id, process: self.clone(), answer, answered: false })
    }

    /// Returns the number of jobs that the process has.
    pub(super) fn load(&self) -> usize {
        self.jobs.lock().len()
    }

    /// Sends a cancel line for a job.
    pub(super) fn cancel(&self, id: i64) {
        let mut cancelled = self.cancelled.lock();
        cancelled.truncate(MAX_CANCELLED - 1);
        cancelled.push_front(id);
        drop(cancelled);
        if let Some(lines) = &*self.lines.lock() {
            let _ = lines.send(wire::cancel(id));
        }
    }

    /// Ends the process gracefully: SIGTERM, and SIGKILL 5 s later. Its jobs are released.
    pub(super) fn end(&self) {
        self.end.cancel();
    }

    /// Kills the process. Its jobs are released.
    pub(super) fn kill(&self) {
        self.kill.cancel();
    }

    /// Stops giving jobs to the process. Its stdin is closed when its last job is done.
    pub(super) fn retire(&self) {
        let mut lines = self.lines.lock();
        if self.jobs.lock().is_empty() {
            *lines = None;
        }
    }

    /// Waits until the process has ended.
    pub(super) async fn wait(&self) {
        self.ended.cancelled().await;
    }

    /// Returns whether the process takes no more jobs, because it is ending or is to be replaced after its current jobs.
    pub(super) fn takes_no_jobs(self: &Arc<Self>, replace: Replace) -> bool {
        if self.end.is_cancelled() || self.kill.is_cancelled() || self.ended.is_cancelled() {
            return true;
        }
        let worn = replace.after_jobs.is_some_and(|most| self.given.load(Ordering::Relaxed) >= most)
            || replace.after.is_some_and(|most| self.begun.elapsed() >= most);
        if worn {
            self.retire();
            let retired = self.clone();
            tokio::spawn(async move { retired.retire_when_done().await });
        }
        worn
    }

    async fn retire_when_done(&self) {
        loop {
            let changed = self.changed.notified();
            self.retire();
            if self.lines.lock().is_none() || self.ended.is_cancelled() {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = self.ended.cancelled() => {}
            }
        }
    }

    /// Returns whether the process ended before its first answer, without being stopped by the worker.
    pub(super) fn ended_without_answer(&self) -> bool {
        let by_itself = !self.end.is_cancelled() && !self.kill.is_cancelled();
        by_itself && self.ended.is_cancelled() && self.answered.load(Ordering::Relaxed) == 0
    }

    /// Returns the time of the end.
    pub(super) fn ended_at(&self) -> Instant {
        self.ended_at.lock().unwrap_or_else(Instant::now)
    }

    async fn serve(
        self: Arc<Self>,
        mut child: Child,
        mut group: Group,
        (stdin, stdout, stderr): (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>),
        to_write: mpsc::UnboundedReceiver<Vec<u8>>,
        settings: Arc<Settings>,
    ) {
        let mut tail = Tail::default();
        // The writing task ends when the process closes its stdin, or when `lines` is set to `None`.
        let writing = tokio::spawn(write(stdin, to_write));
        let mut problem = None;
        let status = {
            let reading = async {
                let errors = async {
                    tail.read(stderr, settings.verbose).await;
                    Ok(())
                };
                // An invalid answer ends the reading of answers, and then the process.
                tokio::try_join!(self.read(stdout), errors).map(|_| ())
            };
            tokio::pin!(reading);
            let (mut is_read, mut is_terminated) = (false, false);
            let mut kill_at = None;
            let status = loop {
                let kill_due = async {
                    match kill_at {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    status = child.wait() => break status,
                    result = &mut reading, if !is_read => {
                        is_read = true;
                        problem = result.err();
                        // Gives the process no more jobs, because its stdout has ended or an answer was invalid.
                        *self.lines.lock() = None;
                        kill_at.get_or_insert_with(|| Instant::now() + settings.kill_after);
                        if problem.is_some() {
                            group.signal(Signal::TERM);
                        }
                    }
                    () = self.end.cancelled(), if !is_terminated => {
                        is_terminated = true;
                        kill_at.get_or_insert_with(|| Instant::now() + settings.kill_after);
                        group.signal(Signal::TERM);
                    }
                    () = self.kill.cancelled() => {
                        group.signal(Signal::KILL);
                        break child.wait().await;
                    }
                    () = kill_due => {
                        group.signal(Signal::KILL);
                        break child.wait().await;
                    }
                }
            };
            group.finish();
            if !is_read {
                // Reads the answers that the process wrote before its end, because they count.
                problem = timeout(PIPES_AFTER, reading).await.ok().and_then(Result::err);
            }
            status
        };
        writing.abort();
        let how = status.map_or_else(|error| error.to_string(), |status| error_text(status, &tail));
        self.finish(problem.as_deref(), &how);
    }

    /// Reads answers to the end. Fails at the first invalid answer.
    async fn read(&self, stdout: Option<ChildStdout>) -> Result<(), String> {
        let Some(stdout) = stdout else { return Ok(()) };
        let mut lines = BoundedLines::new(stdout, MAX_LINE);
        while let Some(line) = lines.next().await {
            let line = line.map_err(|_| format!("it wrote a line of more than {MAX_LINE} bytes"))?;
            if !line.trim_ascii_start().starts_with(b"{") {
                tracing::warn!(line = %String::from_utf8_lossy(&line[..line.len().min(200)]), "a line of the process is not an answer; ignoring it");
                continue;
            }
            let (id, answer) = wire::answer(line).map_err(|problem| format!("its answer is invalid: {problem}"))?;
            match answer {
                wire::Answer::Progress(report) => {
                    let reports = self.jobs.lock().get(&id).map(|pending| pending.reports.clone());
                    match reports {
                        Some(reports) => reports.add(report),
                        None => self.check_cancelled(id)?,
                    }
                }
                wire::Answer::Ended(ending) => self.answer(id, ending)?,
            }
        }
        Ok(())
    }

    fn answer(&self, id: i64, ending: Ending) -> Result<(), String> {
        let pending = self.jobs.lock().remove(&id);
        let Some(pending) = pending else {
            return self.check_cancelled(id);
        };
        self.answered.fetch_add(1, Ordering::Relaxed);
        // Ignores the error if the caller has stopped waiting for this answer.
        let _ = pending.done.send(ending);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Checks an answer for a job that the process does not have. It is an error, unless the job was cancelled.
    fn check_cancelled(&self, id: i64) -> Result<(), String> {
        let was_cancelled = self.cancelled.lock().contains(&id);
        // The answer may be meant for another job, which would then never get an outcome.
        was_cancelled.then_some(()).ok_or_else(|| format!("it answered for job {id}, which it does not have"))
    }

    /// Ends the remaining attempts after the end of the process.
    fn finish(&self, problem: Option<&str>, how: &str) {
        *self.lines.lock() = None;
        *self.ended_at.lock() = Some(Instant::now());
        let by_us = problem.is_none() && (self.end.is_cancelled() || self.kill.is_cancelled());
        let jobs = std::mem::take(&mut *self.jobs.lock());
        if !by_us && !jobs.is_empty() {
            let problem = problem.unwrap_or_default();
            tracing::warn!(jobs = jobs.len(), problem, how, "the process ended before it answered for all of its jobs");
        }
        for pending in jobs.into_values() {
            let ending = match problem {
                Some(problem) => Ending::Failed(format!("the process was ended: {problem}")),
                None if by_us => Ending::Released,
                None => Ending::Failed(format!("the process ended while it had this job: {how}")),
            };
            let _ = pending.done.send(ending);
        }
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
