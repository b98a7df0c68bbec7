//! Attempt of a job, as built-in workers run it, and the results that it receives and returns.

use std::{io, path::Path, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use howdah_client::{CancellationToken, Job, Outcome, Results, proto::DependencyResult};
use howdah_core::job::{JobState, TaskTypeName};
use serde::Serialize;
use tempfile::{NamedTempFile, TempPath};
use tokio::io::{AsyncWriteExt as _, BufWriter};

use super::reports::Reports;

/// Default maximum size of a result in bytes. With more, the job fails for good, because a truncated result would be wrong.
pub const MAX_RESULT_BYTES: usize = 1 << 20;

/// Time from the graceful end of an attempt (SIGTERM, cancel of a statement) to the forced one (SIGKILL, end of the connection).
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);

/// Attempt of a job.
#[derive(Debug)]
pub struct Attempt {
    /// Job, as the client received it.
    pub job: Job,
    /// Progress reports to send.
    pub reports: Arc<Reports>,
    /// File with the results of the dependencies. `None`: the job has no dependencies, or its worker takes no file.
    pub results: Option<ResultsFile>,
    /// Tokens of the worker that runs the attempt.
    pub stop: StopTokens,
}

/// Cancellation tokens that end running jobs when the worker stops. The jobs are released.
#[derive(Clone, Debug)]
pub struct StopTokens {
    /// Ends jobs gracefully: SIGTERM, and SIGKILL 5 s later.
    pub graceful: CancellationToken,
    /// Ends jobs immediately. Cancels `graceful` too.
    pub immediate: CancellationToken,
}

impl StopTokens {
    /// Creates the tokens of a worker that `immediate` stops immediately.
    pub fn new(immediate: CancellationToken) -> Self {
        Self { graceful: immediate.child_token(), immediate }
    }
}

impl Attempt {
    /// Creates an attempt without results of dependencies.
    pub fn new(job: Job, stop: StopTokens) -> Self {
        Self { job, reports: Arc::default(), results: None, stop }
    }

    /// Waits until the attempt must end: the job is cancelled, timed out or lost, or the worker stops. The job is then released,
    /// in case its lease still exists.
    pub(super) async fn stopped(&self) {
        tokio::select! {
            () = self.job.cancelled() => {}
            () = self.stop.graceful.cancelled() => {}
        }
    }

    /// Waits until the attempt must end immediately.
    pub(super) async fn killed(&self) {
        self.stop.immediate.cancelled().await;
    }
}

/// Returns the outcome of a succeeded attempt. With `next_stage`, the job continues in that stage instead of its planned next
/// stage.
pub(super) fn succeeded(result: impl Into<Bytes>, next_stage: Option<String>) -> Outcome {
    let Some(stage) = next_stage else { return Outcome::ack(result) };
    match TaskTypeName::parse(&stage) {
        Ok(_) => Outcome::advance(result, stage),
        Err(problem) => Outcome::retry(format!("the next stage {problem}")),
    }
}

/// Returns bytes as text if they are text, otherwise as base64.
pub(super) fn text_or_base64(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

/// File with the results of a job's dependencies, one JSON object per line. Only this user can read it. Deleted on drop.
#[derive(Debug)]
pub struct ResultsFile(TempPath);

impl ResultsFile {
    /// Writes all results of a job's dependencies to a new file in the directory for temporary files. Returns `None` if the
    /// job has no dependencies.
    pub async fn write(mut results: Results) -> Result<Option<Self>, String> {
        let next = async |results: &mut Results| results.next().await.map_err(|error| error.to_string());
        let Some(mut result) = next(&mut results).await? else { return Ok(None) };
        let failed = |error: io::Error| format!("a temporary file: {error}");
        let (file, path) = NamedTempFile::with_prefix("howdah-results-").map_err(failed)?.into_parts();
        let mut file = BufWriter::new(tokio::fs::File::from_std(file));
        loop {
            file.write_all(&result_line(&result)).await.map_err(failed)?;
            match next(&mut results).await? {
                Some(other) => result = other,
                None => break,
            }
        }
        file.flush().await.map_err(failed)?;
        Ok(Some(Self(path)))
    }

    /// Path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

#[derive(Serialize)]
struct ResultLine<'a> {
    id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
}

fn result_line(dependency: &DependencyResult) -> Vec<u8> {
    let DependencyResult { id, missing, .. } = *dependency;
    let (result, result_base64) = if missing { (None, None) } else { text_or_base64(&dependency.result) };
    let state = JobState::from_proto(dependency.state).map(JobState::name);
    let mut line = serde_json::to_vec(&ResultLine { id, state, result, result_base64, missing }).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use howdah_client::{NewJob, proto::JobState as ProtoState, testing};

    use super::*;

    impl Attempt {
        /// Creates an attempt of a job without a broker, which accepts no reports.
        pub(in crate::workers) async fn of(job: impl Into<testing::Attempt>) -> Self {
            let mut received = None;
            testing::perform(async |job| received = Some(job), job).await;
            Self::new(received.expect("a job"), StopTokens::new(CancellationToken::new()))
        }

        /// Creates the second attempt of job 17 with this payload.
        pub(in crate::workers) async fn with_payload(payload: impl Into<Bytes>) -> Self {
            let job = testing::Attempt::new(NewJob::new("email.send").payload(payload)).number(2).checkpoint("row 7");
            let mut attempt = Self::of(job).await;
            attempt.job.id = 17;
            attempt
        }
    }

    #[tokio::test]
    async fn an_immediate_stop_is_a_graceful_one_too() {
        let attempt = Attempt::with_payload("").await;
        attempt.stop.immediate.cancel();
        attempt.stopped().await;
    }

    #[test]
    fn a_result_is_a_text_or_base64_or_missing() {
        let of = |result: &'static [u8], missing| {
            let state = if missing { ProtoState::Unspecified } else { ProtoState::Succeeded };
            let dependency =
                DependencyResult { id: 7, state: state as i32, result: result.into(), truncated: false, missing };
            String::from_utf8(result_line(&dependency)).unwrap()
        };
        assert_eq!(of(b"a\nb", false), "{\"id\":7,\"state\":\"succeeded\",\"result\":\"a\\nb\"}\n");
        assert_eq!(of(b"\xff", false), "{\"id\":7,\"state\":\"succeeded\",\"result_base64\":\"/w==\"}\n");
        assert_eq!(of(b"", true), "{\"id\":7,\"missing\":true}\n");
    }
}
