//! A finished job, as written to the archive.

/// One archived row. Times are microseconds since 1970, in UTC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Job<'a> {
    pub id: i64,
    /// Name of the task type.
    pub task_type: &'a str,
    /// Time of the enqueue.
    pub created: i64,
    /// Start of the last attempt, if there was one.
    pub leased_at: Option<i64>,
    /// Time of the outcome.
    pub finished: i64,
    /// Outcome: `succeeded`, `cancelled`, `expired` or `discarded`.
    pub outcome: &'a str,
    /// Number of attempts started.
    pub attempt: i32,
    /// Number of attempts allowed.
    pub max_attempts: i32,
    pub priority: i32,
    pub key: Option<&'a str>,
    pub limit_key: Option<&'a str>,
    pub fair_key: Option<&'a str>,
    /// Headers, as JSON.
    pub headers: Option<&'a str>,
    /// All stored options of the job, as a JSON object.
    pub options: Option<&'a str>,
    /// Failed attempts, as JSON.
    pub failures: Option<&'a str>,
    /// Payload, if payloads are archived.
    pub payload: Option<&'a [u8]>,
    /// Size of the payload in bytes, even if the payload is not archived.
    pub payload_bytes: i64,
    /// SHA-256 of the payload, if only the hash is archived.
    pub payload_sha256: Option<&'a [u8]>,
    pub result: Option<&'a [u8]>,
}
