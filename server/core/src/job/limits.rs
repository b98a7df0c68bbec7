//! Limits of one broker, for its memory and its connections. They are set in its configuration. Errors name the limit and the
//! value that exceeds it. Limits on jobs are cluster settings ([`super::ClusterSettings`]).

use std::time::Duration;

/// Values of the broker's limits. Their defaults are documented in `docs/reference/limits.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum size of a gRPC message, received or sent.
    pub message_bytes: usize,
    /// Memory budget in bytes for large messages that are being received or processed. Small messages have another
    /// budget of the same size.
    pub received_bytes: usize,
    /// Memory budget in bytes for responses that clients have not read yet, and for unanswered pipelined requests.
    pub answer_bytes: usize,
    /// Maximum length of an error text in bytes; longer ones are truncated.
    pub error_bytes: usize,
    /// Maximum number of task types to which a stream may subscribe.
    pub stream_types: usize,
    /// Maximum number of jobs in a window.
    pub window_jobs: usize,
    /// Maximum bytes in a window. A window for which the worker sets no bytes has `DEFAULT_WINDOW_BYTES`, or this limit
    /// if it is lower.
    pub window_bytes: u64,
    /// Maximum number of concurrent streams and calls on a connection.
    pub streams_per_connection: u32,
    /// Maximum number of connections.
    pub connections: usize,
    /// Time limit for the first message of a stream.
    pub first_message: Duration,
    /// Enqueue rate limit of a principal, in jobs per second; `None`: unlimited.
    pub principal_jobs_per_second: Option<u64>,
    /// Enqueue rate limit of a principal, in bytes per second; `None`: unlimited.
    pub principal_bytes_per_second: Option<u64>,
    /// Maximum number of streams of a principal; `None`: the maximum number of connections.
    pub principal_streams: Option<usize>,
    /// Maximum number of connections of a principal; `None`: a quarter of `connections`.
    pub principal_connections: Option<usize>,
    /// Maximum number of unauthenticated connections from an IP address; `None`: a quarter of `connections`.
    pub address_connections: Option<usize>,
    /// Maximum number of calls with an invalid credential, per second and IP address.
    pub address_failures_per_second: u64,
    /// Bytes in the intake queue at which backpressure starts.
    pub gathered_bytes: usize,
    /// Jobs in the intake queue at which backpressure starts.
    pub gathered_jobs: usize,
}

impl Limits {
    /// Bytes of a window for which the worker sets no bytes.
    pub const DEFAULT_WINDOW_BYTES: u64 = 64 << 20;
    /// Maximum length of the text of a progress report, in bytes.
    pub const PROGRESS_TEXT_BYTES: usize = 1 << 10;
    /// Maximum size of a checkpoint, in bytes.
    pub const CHECKPOINT_BYTES: usize = 64 << 10;
    /// Largest `max_attempts`.
    pub const MAX_ATTEMPTS: u32 = 1000;
    /// Largest `limit_max`.
    pub const LIMIT_MAX: u32 = 1_000_000;
    /// Maximum number of tags of a job.
    pub const TAGS: usize = 16;
    /// Maximum length of a tag, in bytes.
    pub const TAG_BYTES: usize = 64;
    /// Lowest and highest priority.
    pub const PRIORITY: std::ops::RangeInclusive<i32> = -1000..=1000;

    pub fn streams_of_principal(&self) -> usize {
        self.principal_streams.unwrap_or(self.connections)
    }

    pub fn connections_of_address(&self) -> usize {
        self.address_connections.unwrap_or((self.connections / 4).max(1))
    }

    pub fn connections_of_principal(&self) -> usize {
        self.principal_connections.unwrap_or((self.connections / 4).max(1))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 16 << 20,
            // Has room for four messages of the maximum size. `gathered_bytes` lets the same amount wait for Postgres.
            received_bytes: 64 << 20,
            // Has room for several pages of lists at the same time.
            answer_bytes: 64 << 20,
            error_bytes: 16 << 10,
            stream_types: 1_000,
            window_jobs: 100_000,
            window_bytes: 1 << 30,
            streams_per_connection: 1_000,
            connections: 20_000,
            first_message: Duration::from_secs(10),
            principal_jobs_per_second: None,
            principal_bytes_per_second: None,
            principal_streams: None,
            principal_connections: None,
            address_connections: None,
            address_failures_per_second: 100,
            gathered_bytes: 64 << 20,
            gathered_jobs: 100_000,
        }
    }
}
