//! Writes to stdout, which a reader such as `head` may close at any time.

use std::{
    fmt::Display,
    io::{self, BufWriter, ErrorKind, Stdout, Write},
};

use serde::Serialize;

use super::failure::Failure;

/// Buffered writer for stdout.
#[derive(Debug)]
pub(super) struct Output(BufWriter<Stdout>);

/// JSON object with the name of its store.
#[derive(Serialize)]
struct OfStore<'a, T> {
    #[serde(flatten)]
    object: &'a T,
    #[serde(skip_serializing_if = "str::is_empty")]
    store: &'a str,
}

impl Output {
    /// Creates a buffered writer. Flush it whenever the reader may wait for the output.
    pub(super) fn new() -> Self {
        Self(BufWriter::new(io::stdout()))
    }

    /// Writes a line.
    pub(super) fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        writeln!(self.0, "{line}").map_err(failed)
    }

    /// Writes an object as JSON on a line.
    pub(super) fn json(&mut self, object: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(object).map_err(|error| Failure::failed(error.to_string()))?;
        self.line(line)
    }

    /// Writes an object as JSON on a line. Adds the field `store`, unless `store` is empty.
    pub(super) fn json_of_store(&mut self, object: &impl Serialize, store: &str) -> Result<(), Failure> {
        self.json(&OfStore { object, store })
    }

    /// Writes bytes unchanged.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(failed)
    }

    /// Flushes the buffer.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(failed)
    }
}

#[allow(clippy::needless_pass_by_value)] // for map_err
fn failed(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::output_closed(),
        _ => Failure::failed(format!("cannot write to stdout: {error}")),
    }
}

/// Prints a hint or a count on stderr. Ignores errors, because stderr may be closed.
pub(super) fn note(text: impl Display) {
    let line = format!("{}\n", howdah_server::logging::escaped(&text.to_string()));
    let _ = io::stderr().write_all(line.as_bytes());
}
