//! A job, as read from a file.

use bytes::Bytes;

use crate::Job;

/// An archived job with owned fields. [`Job`] describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub id: i64,
    pub task_type: String,
    pub created: i64,
    pub leased_at: Option<i64>,
    pub finished: i64,
    pub outcome: String,
    pub attempt: i32,
    pub max_attempts: i32,
    pub priority: i32,
    pub key: Option<String>,
    pub limit_key: Option<String>,
    pub fair_key: Option<String>,
    pub headers: Option<String>,
    pub options: Option<String>,
    pub failures: Option<String>,
    /// Payload, if it was archived.
    pub payload: Option<Bytes>,
    pub payload_bytes: i64,
    pub payload_sha256: Option<Bytes>,
    pub result: Option<Bytes>,
}

impl Row {
    /// Copies a job.
    pub fn from_job(job: &Job<'_>) -> Self {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let bytes = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
        Self {
            id: job.id,
            task_type: job.task_type.to_owned(),
            created: job.created,
            leased_at: job.leased_at,
            finished: job.finished,
            outcome: job.outcome.to_owned(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            priority: job.priority,
            key: text(job.key),
            limit_key: text(job.limit_key),
            fair_key: text(job.fair_key),
            headers: text(job.headers),
            options: text(job.options),
            failures: text(job.failures),
            payload: bytes(job.payload),
            payload_bytes: job.payload_bytes,
            payload_sha256: bytes(job.payload_sha256),
            result: bytes(job.result),
        }
    }

    /// Borrows the row as a [`Job`].
    pub fn as_job(&self) -> Job<'_> {
        Job {
            id: self.id,
            task_type: &self.task_type,
            created: self.created,
            leased_at: self.leased_at,
            finished: self.finished,
            outcome: &self.outcome,
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            priority: self.priority,
            key: self.key.as_deref(),
            limit_key: self.limit_key.as_deref(),
            fair_key: self.fair_key.as_deref(),
            headers: self.headers.as_deref(),
            options: self.options.as_deref(),
            failures: self.failures.as_deref(),
            payload: self.payload.as_deref(),
            payload_bytes: self.payload_bytes,
            payload_sha256: self.payload_sha256.as_deref(),
            result: self.result.as_deref(),
        }
    }
}
