//! A finished job as it is archived.

/// A row. Times are microseconds since 1970, in UTC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Job<'a> {
    /// Its id.
    pub id: i64,
    /// The name of its task type.
    pub task_type: &'a str,
    /// When it was enqueued.
    pub created: i64,
    /// When its last attempt began, if it had one.
    pub leased_at: Option<i64>,
    /// When it ended.
    pub finished: i64,
    /// `succeeded`, `cancelled`, `expired` or `discarded`.
    pub outcome: &'a str,
    /// Attempts that were started.
    pub attempt: i32,
    /// Attempts that it could have had.
    pub max_attempts: i32,
    /// Its priority.
    pub priority: i32,
    /// Its key.
    pub key: Option<&'a str>,
    /// Its limit key.
    pub limit_key: Option<&'a str>,
    /// Its fairness key.
    pub fair_key: Option<&'a str>,
    /// Headers, as JSON.
    pub headers: Option<&'a str>,
    /// Its other options, as JSON.
    pub options: Option<&'a str>,
    /// Failed attempts, as JSON.
    pub failures: Option<&'a str>,
    /// Its payload, if payloads are archived.
    pub payload: Option<&'a [u8]>,
    /// The size of the payload in bytes, whether it is archived or not.
    pub payload_bytes: i64,
    /// SHA-256 of the payload, if only that is archived.
    pub payload_sha256: Option<&'a [u8]>,
    /// Its result.
    pub result: Option<&'a [u8]>,
}
