//! Runs one process per job. The payload is its stdin, its stdout is the result, and its exit status determines the outcome.
//! Lines on file descriptor 3 report progress, or name the next stage.

#[cfg(test)]
mod tests;

use std::{io, process::ExitStatus};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use command_fds::{CommandFdExt as _, FdMapping};
use howdah_client::Outcome;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::unix::pipe,
    process::Command,
};

use super::{
    attempt::{Attempt, succeeded},
    process::{AfterOutput, Pipes, Process, Program, Tail, read_line},
    reports::parse_with_stage,
};

/// `EX_DATAERR` of sysexits.h: the job fails for good.
const EXIT_DATA_ERROR: i32 = 65;

/// File descriptor on which a command reports progress.
const PROGRESS_FD: i32 = 3;

/// Maximum length of a progress line in bytes: room for a checkpoint of 64 KiB in base64, and for the other fields.
const MAX_PROGRESS_LINE: usize = 128 << 10;

/// Worker that runs a command for each job.
#[derive(Clone, Debug)]
pub struct Exec {
    /// Command to run.
    pub program: Program,
    /// Maximum size of stdout in bytes.
    pub max_result: usize,
}

/// Output of a command.
#[derive(Debug, Default)]
struct Output {
    /// Stdout, up to one byte more than the maximum size of a result.
    result: Vec<u8>,
    /// End of stderr.
    stderr: Tail,
    /// Next stage of the job, as the command last named it on file descriptor 3; `None` if it named none.
    next_stage: Option<String>,
}

impl Exec {
    /// Runs the command for one job, to its end or until the attempt is stopped. If the future is dropped, the command is killed.
    pub async fn run(&self, attempt: &Attempt) -> Outcome {
        if attempt.stop.graceful.is_cancelled() {
            return Outcome::release();
        }
        let (mut process, progress) = match self.start(attempt) {
            Ok(started) => started,
            Err(error) => return Outcome::retry(format!("cannot start the command: {error}")),
        };
        let mut output = Output::default();
        let reading = self.pump(process.pipes(), progress, attempt, &mut output);
        let ended = process.run(reading, attempt.stopped(), attempt.killed()).await;
        if output.result.len() > self.max_result {
            return Outcome::fail(format!(
                "the command wrote more than {} bytes to stdout, the maximum size of a result; it was killed",
                self.max_result
            ));
        }
        match ended.status {
            Err(error) => Outcome::retry(format!("cannot wait for the command: {error}")),
            Ok(_) if ended.is_stopped => Outcome::release(),
            Ok(status) => outcome(status, output),
        }
    }

    /// Starts the process. Also returns the reading end of its file descriptor 3.
    fn start(&self, attempt: &Attempt) -> io::Result<(Process, pipe::Receiver)> {
        let (theirs, ours) = pipe::pipe()?;
        let mut command = self.program.command();
        describe(&mut command, attempt);
        let mapping = FdMapping { parent_fd: theirs.into_blocking_fd()?, child_fd: PROGRESS_FD };
        command.fd_mappings(vec![mapping]).map_err(io::Error::other)?;
        // `start` drops the command, which owns this process's copy of the writing end. Otherwise the pipe would never end.
        Ok((self.program.start(command)?, ours))
    }

    /// Starts the command, writes the payload, and reads until all pipes have ended or the output is too large.
    async fn pump(
        &self,
        (stdin, stdout, stderr): Pipes,
        progress: pipe::Receiver,
        attempt: &Attempt,
        output: &mut Output,
    ) -> AfterOutput {
        let Output { result, stderr: tail, next_stage } = output;
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command may ignore its input, so a broken pipe is not an error.
                let _ = stdin.write_all(b"\n").await;
                let _ = stdin.write_all(&attempt.job.payload).await;
            }
            Ok(())
        };
        let read_result = async {
            if let Some(stdout) = stdout {
                // A read error counts as the end of the stream.
                let _ = stdout.take(self.max_result as u64 + 1).read_to_end(result).await;
            }
            if result.len() > self.max_result { Err(TooLarge) } else { Ok(()) }
        };
        let read_errors = async {
            tail.read(stderr, self.program.verbose).await;
            Ok(())
        };
        let read_progress = async {
            let (mut progress, mut line) = (BufReader::new(progress), Vec::new());
            while let Some(read) = read_line(&mut progress, &mut line, MAX_PROGRESS_LINE).await {
                // A line that is too long is skipped.
                let (stage, report) = if read.is_ok() { parse_with_stage(&line) } else { (None, None) };
                *next_stage = stage.or(next_stage.take());
                if let Some(report) = report {
                    attempt.reports.add(report);
                }
            }
            Ok(())
        };
        match tokio::try_join!(feed, read_result, read_errors, read_progress) {
            Ok(_) => AfterOutput::Wait,
            Err(TooLarge) => AfterOutput::Kill,
        }
    }
}

/// Error: the output of the command exceeds the maximum size of a result.
struct TooLarge;

/// Sets the environment variables that describe the job.
fn describe(command: &mut Command, attempt: &Attempt) {
    let job = &attempt.job;
    let checkpoint = job.last_checkpoint().map(|bytes| STANDARD.encode(bytes)).unwrap_or_default();
    command
        .env("HOWDAH_JOB_ID", job.id.to_string())
        .env("HOWDAH_TASK_TYPE", &job.task_type)
        .env("HOWDAH_ATTEMPT", job.attempt.to_string())
        .env("HOWDAH_MAX_ATTEMPTS", job.max_attempts.to_string())
        .env("HOWDAH_HEADERS", serde_json::to_string(&job.headers).unwrap_or_default())
        .env("HOWDAH_TAGS", serde_json::to_string(&job.tags).unwrap_or_default())
        .env("HOWDAH_CHECKPOINT", checkpoint);
    if let Some(results) = &attempt.results {
        command.env("HOWDAH_RESULTS", results.path());
    }
}

fn outcome(status: ExitStatus, output: Output) -> Outcome {
    match status.code() {
        Some(0) => succeeded(output.result, output.next_stage),
        Some(EXIT_DATA_ERROR) => Outcome::fail(output.stderr.error(status)),
        _ => Outcome::retry(output.stderr.error(status)),
    }
}
