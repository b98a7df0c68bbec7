//! One process that serves many jobs: its jobs, its answers, its end.

use std::{
    collections::HashMap,
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
    io::{AsyncReadExt as _, AsyncWriteExt as _},
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

/// The longest line of an answer: a result of 1 MiB, in base64 or with every byte escaped.
const MAX_LINE: usize = 8 << 20;

/// The settings of every process.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) program: Program,
    pub(super) verbose: bool,
    pub(super) watchman: Option<Arc<Watchman>>,
    pub(super) kill_after: Duration,
}

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    /// Lines for its stdin; `None`: there will be no more.
    lines: Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>,
    asked: Mutex<HashMap<i64, PendingJob>>,
    begun: Instant,
    given: AtomicU64,
    answered: AtomicU64,
    /// Ends the process: SIGTERM, then SIGKILL.
    end: CancellationToken,
    kill: CancellationToken,
    /// When it ended.
    over: Mutex<Option<Instant>>,
    is_over: CancellationToken,
    /// Signals that there may be capacity for a waiting job.
    changed: Arc<Notify>,
}

/// The caller that waits for an answer.
#[derive(Debug)]
struct PendingJob {
    done: oneshot::Sender<Ending>,
    reports: Arc<Reports>,
}

/// A job that a process was given. If it is dropped without an answer, the process is ended, because its state is
/// unknown.
#[derive(Debug)]
pub(super) struct Asked {
    id: i64,
    process: Arc<Process>,
    answer: oneshot::Receiver<Ending>,
    answered: bool,
}

impl Asked {
    /// Waits for the answer.
    pub(super) async fn ended(&mut self) -> Ending {
        let ending = (&mut self.answer).await;
        self.answered = true;
        ending.unwrap_or(Ending::Released)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered && self.process.asked.lock().contains_key(&self.id) {
            self.process.end();
        }
    }
}

impl Process {
    /// Starts a process, and the tasks that serve it.
    pub(super) fn start(surroundings: &Arc<Surroundings>, changed: Arc<Notify>) -> io::Result<Arc<Self>> {
        let mut child = surroundings.program.starting_on_line().spawn()?;
        let group = Group::of(&child, surroundings.watchman.clone());
        let (lines, to_write) = mpsc::unbounded_channel();
        let process = Arc::new(Self {
            lines: Mutex::new(Some(lines)),
            asked: Mutex::default(),
            begun: Instant::now(),
            given: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            end: CancellationToken::new(),
            kill: CancellationToken::new(),
            over: Mutex::new(None),
            is_over: CancellationToken::new(),
            changed,
        });
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        tracing::debug!(pid = child.id(), "process started");
        tokio::spawn(process.clone().serve(child, group, pipes, to_write, surroundings.clone()));
        Ok(process)
    }

    /// Gives it a job; `None`: it has this job already, or takes no more.
    pub(super) fn ask(self: &Arc<Self>, attempt: &Attempt, reports: &Arc<Reports>) -> Option<Asked> {
        let lines = self.lines.lock();
        let mut asked = self.asked.lock();
        if asked.contains_key(&attempt.id) || lines.as_ref()?.send(wire::job(attempt)).is_err() {
            return None;
        }
        let (done, answer) = oneshot::channel();
        asked.insert(attempt.id, PendingJob { done, reports: reports.clone() });
        self.given.fetch_add(1, Ordering::Relaxed);
        Some(Asked { id: attempt.id, process: self.clone(), answer, answered: false })
    }

    /// The number of its jobs.
    pub(super) fn load(&self) -> usize {
        self.asked.lock().len()
    }

    /// Tells it to cancel a job.
    pub(super) fn cancel(&self, id: i64) {
        if let Some(lines) = &*self.lines.lock() {
            let _ = lines.send(wire::cancel(id));
        }
    }

    /// Ends it gracefully: SIGTERM, SIGKILL 5 s later. Its jobs are released.
    pub(super) fn end(&self) {
        self.end.cancel();
    }

    /// Kills it. Its jobs are released.
    pub(super) fn kill(&self) {
        self.kill.cancel();
    }

    /// Gives it no more jobs: its stdin is closed when its last job is done.
    pub(super) fn retire(&self) {
        let mut lines = self.lines.lock();
        if self.asked.lock().is_empty() {
            *lines = None;
        }
    }

    /// Waits until it has ended.
    pub(super) async fn wait(&self) {
        self.is_over.cancelled().await;
    }

    /// Whether it takes no more jobs: it is ending, or has had its share, so that its current jobs are its last.
    pub(super) fn is_over(self: &Arc<Self>, replace: Replace) -> bool {
        if self.end.is_cancelled() || self.kill.is_cancelled() || self.is_over.is_cancelled() {
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
            if self.lines.lock().is_none() || self.is_over.is_cancelled() {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = self.is_over.cancelled() => {}
            }
        }
    }

    /// Whether it ended itself without an answer.
    pub(super) fn was_useless(&self) -> bool {
        let by_itself = !self.end.is_cancelled() && !self.kill.is_cancelled();
        by_itself && self.is_over.is_cancelled() && self.answered.load(Ordering::Relaxed) == 0
    }

    /// When it ended.
    pub(super) fn ended_at(&self) -> Instant {
        self.over.lock().unwrap_or_else(Instant::now)
    }

    async fn serve(
        self: Arc<Self>,
        mut child: Child,
        mut group: Group,
        (stdin, stdout, stderr): (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>),
        to_write: mpsc::UnboundedReceiver<Vec<u8>>,
        surroundings: Arc<Surroundings>,
    ) {
        let mut tail = Tail::default();
        // Ends with the pipe, or when the process is retired.
        let writing = tokio::spawn(write(stdin, to_write));
        let mut problem = None;
        let status = {
            let reading = async {
                let errors = async {
                    read_errors(stderr, &mut tail, surroundings.verbose).await;
                    Ok(())
                };
                // If an answer is invalid, do not wait for others.
                tokio::try_join!(self.read(stdout), errors).map(|_| ())
            };
            tokio::pin!(reading);
            let (mut is_read, mut is_told) = (false, false);
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
                        // It cannot answer any more, even if it does not know that.
                        *self.lines.lock() = None;
                        kill_at.get_or_insert_with(|| Instant::now() + surroundings.kill_after);
                        if problem.is_some() {
                            group.signal(Signal::TERM);
                        }
                    }
                    () = self.end.cancelled(), if !is_told => {
                        is_told = true;
                        kill_at.get_or_insert_with(|| Instant::now() + surroundings.kill_after);
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
                // Answers that it wrote before its end count.
                problem = timeout(PIPES_AFTER, reading).await.ok().and_then(Result::err);
            }
            status
        };
        writing.abort();
        let how = status.map_or_else(|error| error.to_string(), |status| error_text(status, &tail));
        self.finish(problem.as_deref(), &how);
    }

    /// Reads answers to the end, or until one is invalid, and returns the problem.
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
                wire::Answer::Progress(said) => {
                    let reports = self.asked.lock().get(&id).map(|waiting| waiting.reports.clone());
                    if let Some(reports) = reports {
                        reports.say(said);
                    }
                }
                wire::Answer::Ended(ending) => self.answer(id, ending),
            }
        }
        Ok(())
    }

    fn answer(&self, id: i64, ending: Ending) {
        let Some(waiting) = self.asked.lock().remove(&id) else {
            tracing::warn!(job = id, "the process answered for a job that it does not have; ignoring the answer");
            return;
        };
        self.answered.fetch_add(1, Ordering::Relaxed);
        // The caller may have gone away.
        let _ = waiting.done.send(ending);
        self.changed.notify_waiters();
    }

    /// The process has ended, and with it the attempts it had.
    fn finish(&self, problem: Option<&str>, how: &str) {
        *self.lines.lock() = None;
        *self.over.lock() = Some(Instant::now());
        let by_us = problem.is_none() && (self.end.is_cancelled() || self.kill.is_cancelled());
        let asked = std::mem::take(&mut *self.asked.lock());
        if !by_us && !asked.is_empty() {
            let problem = problem.unwrap_or_default();
            tracing::warn!(
                jobs = asked.len(),
                problem,
                how,
                "the process ended before it answered for all of its jobs"
            );
        }
        for waiting in asked.into_values() {
            let ending = match problem {
                Some(problem) => Ending::Failed(format!("the process was ended: {problem}")),
                None if by_us => Ending::Released,
                None => Ending::Failed(format!("the process ended while it had this job: {how}")),
            };
            let _ = waiting.done.send(ending);
        }
        self.is_over.cancel();
        self.changed.notify_waiters();
    }
}

/// Lets it start, then writes lines, many at a time.
async fn write(stdin: Option<ChildStdin>, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    let Some(mut stdin) = stdin else { return };
    let mut gathered = b"\n".to_vec();
    let mut batch = Vec::new();
    loop {
        // A process that reads no more ends soon; then waiting callers are told.
        if stdin.write_all(&gathered).await.is_err() {
            return;
        }
        gathered.clear();
        if lines.recv_many(&mut batch, 256).await == 0 {
            return;
        }
        batch.drain(..).for_each(|line| gathered.extend(line));
    }
}

async fn read_errors(stderr: Option<ChildStderr>, tail: &mut Tail, verbose: bool) {
    let Some(mut stderr) = stderr else { return };
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        tail.push(&buffer[..length]);
        if verbose {
            let _ = tokio::io::stderr().write_all(&buffer[..length]).await;
        }
    }
}
