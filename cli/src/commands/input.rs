//! Reads what the user gives outside of the flags: payloads, connection strings and confirmations.

use std::{
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    path::Path,
};

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

use super::failure::Failure;
use crate::secrets;

/// Maximum size of a payload. A larger one would not fit into a gRPC message.
const MAX_PAYLOAD_BYTES: u64 = 1 << 30;
/// Maximum size of a line. A longer line indicates a mistake, such as missing line breaks.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Reads the payload of a job from the file, or from stdin if the argument is `-`. Otherwise the argument is the payload.
pub(super) async fn payload(file: Option<&Path>, argument: Option<String>) -> Result<Vec<u8>, Failure> {
    match (file, argument) {
        (Some(path), _) => Input::open(path).await?.all().await,
        (None, Some(argument)) if argument == "-" => Input::stdin().all().await,
        (None, argument) => Ok(argument.unwrap_or_default().into_bytes()),
    }
}

/// Reads a new payload for an existing job, like [`payload`]. `None` if neither a file nor an argument is given.
pub(super) async fn replacement(file: Option<&Path>, argument: Option<&str>) -> Result<Option<Vec<u8>>, Failure> {
    if file.is_none() && argument.is_none() {
        return Ok(None);
    }
    payload(file, argument.map(str::to_owned)).await.map(Some)
}

/// Input with its name, for errors.
pub(super) struct Input {
    reader: Box<dyn AsyncBufRead + Send + Unpin>,
    name: String,
}

impl Input {
    pub(super) fn stdin() -> Self {
        Self::new(tokio::io::stdin(), "standard input".into())
    }

    /// Opens a file; `-` is stdin.
    pub(super) async fn open(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self::stdin());
        }
        let name = path.display().to_string();
        let file = tokio::fs::File::open(path).await;
        let file = file.map_err(|error| Failure::failed(format!("cannot read {name}: {error}")))?;
        Ok(Self::new(file, name))
    }

    pub(super) fn new(reader: impl AsyncRead + Send + Unpin + 'static, name: String) -> Self {
        Self { reader: Box::new(BufReader::with_capacity(256 << 10, reader)), name }
    }

    /// Reads the whole input.
    pub(super) async fn all(mut self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(MAX_PAYLOAD_BYTES + 1).read_to_end(&mut bytes).await;
        self.checked(read)?;
        if bytes.len() as u64 > MAX_PAYLOAD_BYTES {
            return Err(Failure::failed(format!("{} has more than 1 GiB", self.name)));
        }
        Ok(bytes)
    }

    /// Reads the next line without its line break (LF or CRLF). Returns `None` after the last line.
    pub(super) async fn line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line).await;
        if self.checked(read)? == 0 {
            return Ok(None);
        }
        if line.len() as u64 > MAX_LINE_BYTES {
            return Err(Failure::failed(format!("a line of {} has more than 64 MiB", self.name)));
        }
        for end in [b'\n', b'\r'] {
            line.pop_if(|last| *last == end);
        }
        Ok(Some(line))
    }

    fn checked<T>(&self, read: std::io::Result<T>) -> Result<T, Failure> {
        read.map_err(|error| Failure::failed(format!("cannot read {}: {error}", self.name)))
    }
}

/// Returns the given connection string, or reads it from the variable of `env:NAME` or the file of `file:PATH`. Errors name the
/// flag, and do not contain the string.
pub(super) fn connection_string(flag: &str, given: &str) -> Result<String, Failure> {
    let text = if let Some(name) = given.strip_prefix("env:") {
        secrets::var(name)
            .ok_or_else(|| Failure::usage(format!("{flag}: the variable {name} is not set, or not UTF-8")))?
    } else if let Some(path) = given.strip_prefix("file:") {
        std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{flag}: {path}: {error}")))?
    } else {
        given.to_owned()
    };
    match text.trim() {
        "" => {
            Err(Failure::usage(format!("{flag}: the connection string is empty; write postgres://user@host/database")))
        }
        text => Ok(text.to_owned()),
    }
}

/// Fails if stdin is not a terminal, so that the command cannot prompt. `instead` tells the user what to do.
pub(super) fn needs_terminal(instead: &str) -> Result<(), Failure> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage(format!("cannot prompt: stdin is not a terminal; {instead}")))
}

/// Prompts the user to continue. Returns whether the answer is yes.
pub(super) async fn is_confirmed() -> Result<bool, Failure> {
    let answer = tokio::task::spawn_blocking(|| {
        let _ = io::stderr().write_all(b"Continue? [y/N] ");
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(|error| Failure::failed(error.to_string()))?;
    let answer = answer.map_err(|error| Failure::failed(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_lose_only_their_line_breaks() {
        let text: &[u8] = b"a\n\n b \r\n\xff\0\r\r\nlast";
        let mut input = Input::new(text, "text".into());
        let mut lines = Vec::new();
        while let Some(line) = input.line().await.unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, [b"a".as_slice(), b"", b" b ", b"\xff\0\r", b"last"]);
    }

    #[tokio::test]
    async fn a_missing_input_file_is_named() {
        let failure = Input::open(Path::new("/no/such/file")).await.err().unwrap();
        assert!(format!("{failure:?}").contains("/no/such/file"));
    }
}
