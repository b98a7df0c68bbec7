//! Enqueues one job per line, and prints the ids in order.
//!
//! Each request stores all of its lines or none of them, and the next request is sent only after the answer. So one line number
//! describes the progress: all earlier lines are processed, and neither this line nor a later one is stored.

use std::{
    collections::VecDeque,
    fmt,
    io::{IsTerminal as _, stderr, stdout},
    sync::Arc,
};

use bytes::Bytes;
use howdah_client::{Client, Enqueued, Error, NewJob, new_request_key};
use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};
use tokio::{
    select,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{
    Failure, Input, Printer,
    resume::{Position, Refusal, Request},
};
use crate::commands::{output, signals::Signals};

/// Maximum lines and bytes of a request. A single longer line is sent alone.
const MAX_LINES: usize = 5_000;
const MAX_BYTES: usize = 4 << 20;

/// Behaviour if the broker refuses a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnError {
    /// Stop, and store no line from the refused line on
    #[default]
    Stop,
    /// Report the line, and store all other lines
    Continue,
}

/// Enqueues the lines, starting at `resume`.
pub(super) async fn enqueue(
    client: &Client,
    template: NewJob,
    input: Input,
    (on_error, resume): (OnError, Option<Position>),
    printer: Printer,
) -> Result<(), Failure> {
    let signals = Signals::<1>::catch()?;
    let Position { first, request } = resume.unwrap_or(Position::line(1));
    let mut feed = Feed::start(input, first, signals.stages[0].clone());
    let mut lines = Lines {
        client,
        template,
        on_error,
        printer: Some(printer),
        pending: VecDeque::new(),
        size: 1_000,
        next: first,
        refused: 0,
        bar: progress_bar(),
    };
    let sent = lines.send_all(&mut feed, request).await;
    lines.bar.finish_and_clear();
    let read = feed.end().await;
    lines.flush()?;
    sent?;
    let next = lines.next;
    read.map_err(|failure| failure.followed_by("all earlier lines were processed"))?;
    match (signals.exit_code(), lines.refused) {
        (0, 0) => Ok(()),
        (0, refused) => Err(Failure::data(format!("{refused} lines were refused, all other lines are stored"))),
        (code, _) => Err(Failure::interrupted(
            code,
            Some(format!("stopped; all lines before line {next} were processed: continue with --resume {next}")),
        )),
    }
}

/// Lines to enqueue, and their progress.
struct Lines<'a> {
    client: &'a Client,
    template: NewJob,
    on_error: OnError,
    /// Printer of the results. `None` after stdout was closed: the remaining jobs are still enqueued.
    printer: Option<Printer>,
    /// Lines that are read but not stored.
    pending: VecDeque<Line>,
    /// Maximum lines of the next request. After a refusal it shrinks, to isolate the refused line.
    size: usize,
    /// Number of the first line that is neither stored nor reported as refused.
    next: u64,
    refused: u64,
    bar: ProgressBar,
}

impl Lines<'_> {
    async fn send_all(&mut self, feed: &mut Feed, again: Option<Request>) -> Result<(), Failure> {
        if let Some(request) = again {
            self.repeat(feed, request).await?;
        }
        loop {
            if self.pending.is_empty() {
                // Flushes before it waits for more input: the reader of stdout may wait for the ids of the earlier lines.
                self.flush()?;
                let Some(line) = feed.next().await else { return Ok(()) };
                self.pending.push_back(line);
            }
            while self.fitting() == self.pending.len() && self.pending.len() < self.size {
                let Some(line) = feed.next_if_read() else { break };
                self.pending.push_back(line);
            }
            self.send(self.fitting(), new_request_key()).await?;
        }
    }

    /// Repeats the last request of an earlier run with its request key, so that the broker stores its lines only once.
    async fn repeat(&mut self, feed: &mut Feed, request: Request) -> Result<(), Failure> {
        while self.pending.back().is_none_or(|line| line.number < request.last) {
            let Some(line) = feed.next().await else {
                return Err(Failure::data(format!(
                    "the input ends before line {} of the request that --resume repeats: use the input of the earlier run",
                    request.last
                )));
            };
            self.pending.push_back(line);
        }
        let count = self.pending.len();
        match self.request(count, &request.key).await {
            Ok(jobs) => self.stored(jobs),
            // The request key belongs to other jobs, so the input has changed since the earlier run. A new key could store
            // lines twice.
            Err(error) if error.code() == Code::AlreadyExists => {
                return Err(Failure::data("--resume needs the lines and options of the earlier run, but they differ"));
            }
            Err(error) => self.refused(count, request.key, error)?,
        }
        Ok(())
    }

    /// Number of pending lines that fit into the next request.
    fn fitting(&self) -> usize {
        let mut bytes = 0;
        let fits = |line: &&Line| {
            bytes += line.payload.len();
            bytes <= MAX_BYTES
        };
        self.pending.iter().take(self.size).take_while(fits).count().max(1)
    }

    async fn send(&mut self, count: usize, key: String) -> Result<(), Failure> {
        match self.request(count, &key).await {
            Ok(jobs) => self.stored(jobs),
            Err(error) => self.refused(count, key, error)?,
        }
        Ok(())
    }

    /// Sends the first `count` pending lines.
    async fn request(&self, count: usize, key: &str) -> Result<Vec<Enqueued>, Error> {
        let jobs = self.pending.iter().take(count).map(|line| self.template.clone().payload(line.payload.clone()));
        self.client.enqueue_all_with_key(jobs.collect::<Vec<_>>(), key).await
    }

    fn stored(&mut self, jobs: Vec<Enqueued>) {
        for job in jobs {
            let Some(line) = self.pending.pop_front() else { break };
            self.next = line.number + 1;
            self.bar.inc(1);
            if let Some(printer) = &mut self.printer
                && printer.print(job, Some(line.number)).is_err()
            {
                self.printer = None;
            }
        }
        self.size = (self.size * 2).min(MAX_LINES);
    }

    /// Handles an error of a request with `count` lines: reduces the request size, reports the first line as refused, or fails.
    fn refused(&mut self, count: usize, key: String, error: Error) -> Result<(), Failure> {
        let last = self.next + count as u64 - 1;
        match Refusal::classify(&error, count) {
            Refusal::Unknown => {
                let position = Position { first: self.next, request: Some(Request { last, key }) };
                let unknown = "it is unknown whether these lines are stored; ";
                let unknown = if error.is_effect_unknown() { "" } else { unknown };
                let then = format!(
                    "{unknown}later lines are not stored. Continue with --resume {position} within 24 hours, which stores \
                     no line twice"
                );
                Err(Failure::from(error).within(&format!("lines {} to {last}", self.next)).followed_by(&then))
            }
            Refusal::Lines(size) => {
                self.size = size;
                Ok(())
            }
            Refusal::First if self.on_error == OnError::Continue => self.list(&error),
            Refusal::First | Refusal::All => {
                let next = self.next;
                let then = format!(
                    "this line and later ones are not stored: use --resume {next}, or skip this line with --resume {}",
                    next + 1
                );
                Err(Failure::from(error).within(&format!("line {next}")).followed_by(&then))
            }
        }
    }

    /// Reports the first pending line as refused.
    fn list(&mut self, error: &Error) -> Result<(), Failure> {
        let Some(line) = self.pending.pop_front() else { return Ok(()) };
        self.refused += 1;
        self.next = line.number + 1;
        match &mut self.printer {
            Some(printer) if printer.json => printer.refused(line.number, error)?,
            _ => output::note(format_args!("line {}: {error}", line.number)),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.printer.as_mut().map_or(Ok(()), |printer| printer.output.flush())
    }
}

/// Creates a progress bar on stderr, visible only if stderr is a terminal and stdout is not.
fn progress_bar() -> ProgressBar {
    if !stderr().is_terminal() || stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
        let _ = write!(text, "{}", HumanCount(state.per_sec() as u64));
    };
    match ProgressStyle::with_template("{spinner} {human_pos} jobs enqueued, {rate} per second, {elapsed}") {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
}

/// Maximum lines and bytes in memory that are read from the input and not yet sent. More input waits for a request to finish.
const AHEAD_LINES: usize = 20_000;
const AHEAD_BYTES: u32 = 64 << 20;

struct Line {
    /// Line number, from 1.
    number: u64,
    payload: Bytes,
    /// Semaphore permit for the bytes of the line. It limits the unsent input in memory, and is released when the line is
    /// dropped.
    _room: Option<OwnedSemaphorePermit>,
}

/// Stream of input lines.
struct Feed {
    lines: mpsc::Receiver<Line>,
    reading: JoinHandle<Result<(), Failure>>,
}

impl Feed {
    /// Starts reading at line `first`, until the end of the input or until `stop` is cancelled.
    fn start(input: Input, first: u64, stop: CancellationToken) -> Self {
        let (sender, lines) = mpsc::channel(AHEAD_LINES);
        Self { lines, reading: tokio::spawn(read(input, first, sender, stop)) }
    }

    /// Returns the next line; `None` after the last one.
    async fn next(&mut self) -> Option<Line> {
        self.lines.recv().await
    }

    /// Returns the next line if it has already been read.
    fn next_if_read(&mut self) -> Option<Line> {
        self.lines.try_recv().ok()
    }

    /// Stops reading, and returns the read error, if any.
    async fn end(self) -> Result<(), Failure> {
        drop(self.lines);
        // A join error (the reading task was cancelled or has panicked) is not an error of the input.
        self.reading.await.unwrap_or(Ok(()))
    }
}

async fn read(
    mut input: Input,
    first: u64,
    sender: mpsc::Sender<Line>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let room = Arc::new(Semaphore::new(AHEAD_BYTES as usize));
    for number in 1.. {
        let line = select! {
            line = input.line() => line.map_err(|failure| failure.within(&format!("line {number}")))?,
            () = stop.cancelled() => None,
            () = sender.closed() => None,
        };
        let Some(line) = line else { break };
        if number < first {
            continue;
        }
        let bytes = u32::try_from(line.len() + 64).unwrap_or(AHEAD_BYTES).min(AHEAD_BYTES);
        let permit = Arc::clone(&room).acquire_many_owned(bytes).await.ok();
        if sender.send(Line { number, payload: line.into(), _room: permit }).await.is_err() {
            break;
        }
    }
    Ok(())
}
