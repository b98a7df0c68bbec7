//! One process that serves many jobs: what it is asked, what it answers, how it ends.

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

/// The longest line of an answer: a result of 1 MiB, in base64 or with each of its bytes escaped.
const MAX_LINE: usize = 8 << 20;

/// What every process is started with.
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
    /// Lines for its stdin; `None`: it gets no more.
    lines: Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>,
    asked: Mutex<HashMap<i64, PendingJob>>,
    begun: Instant,
    given: AtomicU64,
    answered: AtomicU64,
    /// It is to end: SIGTERM, then SIGKILL.
    end: CancellationToken,
    kill: CancellationToken,
    /// When it had ended.
    over: Mutex<Option<Instant>>,
    is_over: CancellationToken,
    /// There may be room for a job that had to wait.
    changed: Arc<Notify>,
}

/// Who waits for an answer.
#[derive(Debug)]
struct PendingJob {
    done: oneshot::Sender<Ending>,
    reports: Arc<Reports>,
}

/// A job that a process was asked to do. Dropped without an answer, the process is ended: nobody knows
/// what it does.
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
        ending.unwrap_or(Ending::GivenUp)
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
    /// Starts one, and those who serve it.
    pub(super) fn start(surroundings: &Arc<Surroundings>, changed: Arc<Notify>) -> io::Result<Arc<Self>> {
        let mut child = surroundings.program.gated().spawn()?;
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

    /// Asks for a job; `None`: it has this one already, or takes no more.
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

    /// Jobs that it has.
    pub(super) fn load(&self) -> usize {
        self.asked.lock().len()
    }

    /// Tells it to stop working on a job.
    pub(super) fn cancel(&self, id: i64) {
        if let Some(lines) = &*self.lines.lock() {
            let _ = lines.send(wire::cancel(id));
        }
    }

    /// StopTokens it politely: SIGTERM, SIGKILL 5 s later. Its jobs go back.
    pub(super) fn end(&self) {
        self.end.cancel();
    }

    /// StopTokens it at once. Its jobs go back.
    pub(super) fn kill(&self) {
        self.kill.cancel();
    }

    /// Gives it no more jobs: its stdin ends once it has done those it has.
    pub(super) fn retire(&self) {
        let mut lines = self.lines.lock();
        if self.asked.lock().is_empty() {
            *lines = None;
        }
    }

    /// Waits for its end.
    pub(super) async fn wait(&self) {
        self.is_over.cancelled().await;
    }

    /// Whether it takes no more jobs: it ends, or has done its share, and then what it has is its last.
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

    /// It ended by itself, and has answered nothing.
    pub(super) fn was_useless(&self) -> bool {
        let by_itself = !self.end.is_cancelled() && !self.kill.is_cancelled();
        by_itself && self.is_over.is_cancelled() && self.answered.load(Ordering::Relaxed) == 0
    }

    /// When it did.
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
        // StopTokens with the pipe, or when the process is retired.
        let writing = tokio::spawn(write(stdin, to_write));
        let mut problem = None;
        let status = {
            let reading = async {
                let errors = async {
                    read_errors(stderr, &mut tail, surroundings.verbose).await;
                    Ok(())
                };
                // An answer that makes no sense is not waited with.
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
                        // It cannot answer any more, whether it knows that or not.
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
                // What it had written before its end counts.
                problem = timeout(PIPES_AFTER, reading).await.ok().and_then(Result::err);
            }
            status
        };
        writing.abort();
        let how = status.map_or_else(|error| error.to_string(), |status| error_text(status, &tail));
        self.finish(problem.as_deref(), &how);
    }

    /// Reads answers to the end; or until one makes no sense, and says which.
    async fn read(&self, stdout: Option<ChildStdout>) -> Result<(), String> {
        let Some(stdout) = stdout else { return Ok(()) };
        let mut lines = BoundedLines::new(stdout, MAX_LINE);
        while let Some(line) = lines.next().await {
            let line = line.map_err(|_| format!("a line of more than {MAX_LINE} bytes came from it"))?;
            if !line.trim_ascii_start().starts_with(b"{") {
                tracing::warn!(line = %String::from_utf8_lossy(&line[..line.len().min(200)]), "not an answer");
                continue;
            }
            let (id, answer) = wire::answer(line).map_err(|problem| format!("its answer makes no sense: {problem}"))?;
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
            tracing::warn!(job = id, "an answer for a job that the process was not asked to do");
            return;
        };
        self.answered.fetch_add(1, Ordering::Relaxed);
        // Whoever asked may have gone away.
        let _ = waiting.done.send(ending);
        self.changed.notify_waiters();
    }

    /// It has ended: so have the attempts it had.
    fn finish(&self, problem: Option<&str>, how: &str) {
        *self.lines.lock() = None;
        *self.over.lock() = Some(Instant::now());
        let by_us = problem.is_none() && (self.end.is_cancelled() || self.kill.is_cancelled());
        let asked = std::mem::take(&mut *self.asked.lock());
        if !by_us && !asked.is_empty() {
            let problem = problem.unwrap_or_default();
            tracing::warn!(jobs = asked.len(), problem, how, "the process ended with jobs in hand");
        }
        for waiting in asked.into_values() {
            let ending = match problem {
                Some(problem) => Ending::Failed(format!("the process was ended: {problem}")),
                None if by_us => Ending::GivenUp,
                None => Ending::Failed(format!("the process ended while it had this job: {how}")),
            };
            let _ = waiting.done.send(ending);
        }
        self.is_over.cancel();
        self.changed.notify_waiters();
    }
}

/// Lets it begin, then writes lines, many at a time.
async fn write(stdin: Option<ChildStdin>, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    let Some(mut stdin) = stdin else { return };
    let mut gathered = b"\n".to_vec();
    let mut batch = Vec::new();
    loop {
        // One that does not read any more ends soon; who it leaves waiting is told then.
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
