//! What goes into a command and what comes out of it, in bounded memory.

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
};

use super::{ERROR_TAIL_BYTES, MAX_RESULT_BYTES};

/// The command wrote more than a result may hold.
#[derive(Debug)]
pub(super) struct TooLarge;

/// What a command wrote.
#[derive(Debug, Default)]
pub(super) struct Captured {
    /// All of it, unless it was too much.
    pub(super) stdout: Vec<u8>,
    /// The end of it.
    pub(super) stderr: Tail,
}

impl Captured {
    pub(super) fn is_too_large(&self) -> bool {
        self.stdout.len() > MAX_RESULT_BYTES
    }
}

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    /// Whether the beginning is missing.
    cut: bool,
}

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Not at each read: that would move the tail every time.
        if self.bytes.len() > 16 * ERROR_TAIL_BYTES {
            self.bytes.drain(..self.bytes.len() - ERROR_TAIL_BYTES);
            self.cut = true;
        }
    }

    /// As text, marked if there was more.
    pub(super) fn text(&self) -> String {
        let start = self.bytes.len().saturating_sub(ERROR_TAIL_BYTES);
        let cut = self.cut || start > 0;
        // The cut may have gone through a character.
        let inside = |byte: &&u8| cut && **byte & 0b1100_0000 == 0b1000_0000;
        let rest = self.bytes[start..].iter().take(3).take_while(inside).count();
        let text = String::from_utf8_lossy(&self.bytes[start + rest..]);
        let text = text.trim();
        if cut { format!("\u{2026}{text}") } else { text.to_owned() }
    }
}

/// Our ends of the pipes.
#[derive(Debug)]
pub(super) struct Pipes {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    verbose: bool,
}

impl Pipes {
    pub(super) fn of(child: &mut Child, verbose: bool) -> Self {
        Self { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take(), verbose }
    }

    /// Lets the command begin, writes the payload and reads what comes, until every pipe has ended or too much came.
    pub(super) async fn pump(self, payload: Bytes, captured: &mut Captured) -> Result<(), TooLarge> {
        let Self { stdin, stdout, stderr, verbose } = self;
        let Captured { stdout: result, stderr: tail } = captured;
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command need not read its input: a broken pipe is no error.
                let _ = stdin.write_all(b"\n").await;
                let _ = stdin.write_all(&payload).await;
            }
            Ok(())
        };
        let read = async {
            let Some(stdout) = stdout else { return Ok(()) };
            // What cannot be read any more has ended.
            let _ = stdout.take(MAX_RESULT_BYTES as u64 + 1).read_to_end(result).await;
            if result.len() > MAX_RESULT_BYTES { Err(TooLarge) } else { Ok(()) }
        };
        let read_errors = async {
            let Some(mut stderr) = stderr else { return Ok(()) };
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
                tail.push(&buffer[..length]);
                if verbose {
                    let _ = tokio::io::stderr().write_all(&buffer[..length]).await;
                }
            }
            Ok(())
        };
        tokio::try_join!(feed, read, read_errors).map(|_| ())
    }
}
