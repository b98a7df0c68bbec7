//! Writes to stdout, which a reader such as `head` may close at any time.

use std::{
    fmt::Display,
    io::{self, BufWriter, ErrorKind, Stdout, Write},
};

use howdah_client::{
    Enqueued,
    proto::{EnqueuedJob, Job},
};
use serde::Serialize;
use serde_json::Value;

use super::{failure::Failure, text};

/// Buffered writer for stdout.
#[derive(Debug)]
pub(super) struct Output(BufWriter<Stdout>);

impl Output {
    /// Creates a buffered writer. Flush it whenever the reader may wait for the output.
    pub(super) fn new() -> Self {
        Self(BufWriter::new(io::stdout()))
    }

    pub(super) fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        writeln!(self.0, "{line}").map_err(failed)
    }

    /// Writes an object that is not a message of the protocol as JSON on a line.
    pub(super) fn json(&mut self, object: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(object).map_err(|error| Failure::failed(error.to_string()))?;
        self.line(line)
    }

    /// Writes a protocol message as JSON on a line. `name` is its message type.
    pub(super) fn message(&mut self, name: &str, message: &impl prost::Message) -> Result<(), Failure> {
        self.line(mapped(name, message)?)
    }

    /// Writes jobs as JSON, one per line, or as text.
    pub(super) fn jobs<T: Display>(
        &mut self,
        json: bool,
        jobs: &[Job],
        text: impl FnOnce() -> T,
    ) -> Result<(), Failure> {
        if json {
            jobs.iter().try_for_each(|job| self.job(job))?;
        } else if !jobs.is_empty() {
            self.line(text())?;
        }
        self.flush()
    }

    /// Writes a job as JSON on a line, with payload, result and checkpoint also as text.
    pub(super) fn job(&mut self, job: &Job) -> Result<(), Failure> {
        self.line(with_texts(job)?)
    }

    /// Writes the result of an enqueue as JSON on a line. `line` is the number of the input line, if the job came from one.
    pub(super) fn enqueued(&mut self, job: &Enqueued, line: Option<u64>) -> Result<(), Failure> {
        let job = EnqueuedJob { id: job.id, is_new: job.is_new, outcome: job.outcome.into() };
        let mut json = mapped("EnqueuedJob", &job)?;
        if let Some(line) = line {
            json["line"] = line.into();
        }
        self.line(json)
    }

    /// Writes bytes unchanged.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(failed)
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(failed)
    }
}

/// Prints a protocol message of the type `name` as JSON.
pub(super) fn message(name: &str, message: &impl prost::Message) -> Result<(), Failure> {
    show(true, name, message, || "")
}

/// Prints a protocol message of the type `name`, as JSON or as text.
pub(super) fn show<T: Display>(
    json: bool,
    name: &str,
    message: &impl prost::Message,
    text: impl FnOnce() -> T,
) -> Result<(), Failure> {
    list(json, name, std::slice::from_ref(message), text)
}

/// Prints protocol messages of the type `name`, as JSON objects, one per line, or together as text.
pub(super) fn list<T: Display>(
    json: bool,
    name: &str,
    messages: &[impl prost::Message],
    text: impl FnOnce() -> T,
) -> Result<(), Failure> {
    let mut output = Output::new();
    if json {
        messages.iter().try_for_each(|message| output.message(name, message))?;
    } else {
        output.line(text())?;
    }
    output.flush()
}

/// Converts a protocol message to JSON, in the same format as the broker's HTTP port.
fn mapped(name: &str, message: &impl prost::Message) -> Result<Value, Failure> {
    howdah_proto::json::write(name, message).map_err(|error| Failure::failed(error.to_string()))
}

/// Converts a job to JSON. Adds payload, result and checkpoint as strings if they are valid text.
fn with_texts(job: &Job) -> Result<Value, Failure> {
    let mut json = mapped("Job", job)?;
    let texts = [("payload_text", &job.payload), ("result_text", &job.result), ("checkpoint_text", &job.checkpoint)];
    for (name, bytes) in texts {
        if let Some(text) = text::as_text(bytes).filter(|text| !text.is_empty()) {
            json[name] = text.into();
        }
    }
    Ok(json)
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
    let line = format!("{}\n", howdah_core::logging::escaped(&text.to_string()));
    let _ = io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_names_of_the_protocol_and_its_payload_also_as_text() {
        let job = Job {
            id: 17,
            state: howdah_client::proto::JobState::Dead as i32,
            payload: b"\x1b\n".as_slice().into(),
            result: vec![0xff].into(),
            max_attempts: 10,
            create_time: Some(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 }),
            ..Job::default()
        };
        let expected = serde_json::json!({
            "id": "17", "state": "JOB_STATE_DEAD", "payload": "Gwo=", "payload_text": "\u{1b}\n", "result": "/w==",
            "max_attempts": 10, "create_time": "1970-01-01T00:00:01.500Z",
        });
        assert_eq!(with_texts(&job).unwrap(), expected);
    }
}
