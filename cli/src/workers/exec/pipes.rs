//! Streams of a command, in bounded memory.

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
};

use super::{
    super::{
        bounded_lines::BoundedLines,
        reports::{Report, Reports},
    },
    ERROR_TAIL_BYTES,
};

/// Error: the output of the command exceeds the maximum size of a result.
#[derive(Debug)]
pub(super) struct TooLarge;

/// Output of a command.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) max_result: usize,
    /// Complete stdout, unless it was too large.
    pub(super) stdout: Vec<u8>,
    /// End of stderr.
    pub(super) stderr: Tail,
    /// Next stage of the job, as the command last named it on file descriptor 3; `None` if it named none.
    pub(super) next_stage: Option<String>,
}

impl Captured {
    pub(super) fn new(max_result: usize) -> Self {
        Self { max_result, stdout: Vec::new(), stderr: Tail::default(), next_stage: None }
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.stdout.len() > self.max_result
    }
}

/// Last bytes of a stream.
#[derive(Debug, Default)]
pub(in crate::workers) struct Tail {
    bytes: Vec<u8>,
    /// Whether the beginning was dropped.
    cut: bool,
}

impl Tail {
    /// Reads the stderr of a process to its end; with `verbose`, also copies it to the worker's stderr.
    pub(in crate::workers) async fn read(&mut self, stderr: Option<ChildStderr>, verbose: bool) {
        let Some(mut stderr) = stderr else { return };
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
            self.push(&buffer[..length]);
            if verbose {
                let _ = tokio::io::stderr().write_all(&buffer[..length]).await;
            }
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Cuts the buffer only when it is 16 times as large as the tail, because each cut copies the tail.
        if self.bytes.len() > 16 * ERROR_TAIL_BYTES {
            self.bytes.drain(..self.bytes.len() - ERROR_TAIL_BYTES);
            self.cut = true;
        }
    }

    /// Returns the tail as text, with a mark if the beginning was dropped.
    pub(in crate::workers) fn text(&self) -> String {
        let start = self.bytes.len().saturating_sub(ERROR_TAIL_BYTES);
        let cut = self.cut || start > 0;
        // The cut may be within a UTF-8 character: skips its remaining bytes.
        let inside = |byte: &&u8| cut && **byte & 0b1100_0000 == 0b1000_0000;
        let rest = self.bytes[start..].iter().take(3).take_while(inside).count();
        let text = String::from_utf8_lossy(&self.bytes[start + rest..]);
        let text = text.trim();
        if cut { format!("\u{2026}{text}") } else { text.to_owned() }
    }
}

/// The worker's ends of the pipes.
#[derive(Debug)]
pub(super) struct Pipes {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    progress: pipe::Receiver,
    verbose: bool,
}

/// Maximum length of a progress line in bytes: room for a checkpoint of 64 KiB in base64, and for the other fields.
const MAX_PROGRESS_LINE: usize = 128 << 10;

impl Pipes {
    pub(super) fn new(child: &mut Child, progress: pipe::Receiver, verbose: bool) -> Self {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        Self { stdin, stdout, stderr, progress, verbose }
    }

    /// Starts the command, writes the payload, and reads until all pipes have ended or the output is too large.
    pub(super) async fn pump(self, payload: Bytes, captured: &mut Captured, reports: &Reports) -> Result<(), TooLarge> {
        let Self { stdin, stdout, stderr, progress, verbose } = self;
        let Captured { max_result, stdout: result, stderr: tail, next_stage } = captured;
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command may ignore its input, so a broken pipe is not an error.
                let _ = stdin.write_all(b"\n").await;
                let _ = stdin.write_all(&payload).await;
            }
            Ok(())
        };
        let read = async {
            let Some(stdout) = stdout else { return Ok(()) };
            // A read error counts as the end of the stream.
            let _ = stdout.take(*max_result as u64 + 1).read_to_end(result).await;
            if result.len() > *max_result { Err(TooLarge) } else { Ok(()) }
        };
        let read_errors = async {
            tail.read(stderr, verbose).await;
            Ok(())
        };
        let read_progress = async {
            let mut lines = BoundedLines::new(progress, MAX_PROGRESS_LINE);
            // A line that is too long is skipped.
            while let Some(line) = lines.next().await {
                let Ok(line) = line else { continue };
                let (stage, report) = Report::parse_with_stage(line);
                if stage.is_some() {
                    *next_stage = stage;
                }
                if let Some(report) = report {
                    reports.add(report);
                }
            }
            Ok(())
        };
        tokio::try_join!(feed, read, read_errors, read_progress).map(|_| ())
    }
}
