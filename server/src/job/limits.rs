//! Limits of one broker: its memory and its connections. Its configuration sets them. An error names the limit and the
//! value that exceeds it. Limits on jobs are settings of the cluster ([`super::ClusterSettings`]).

use std::time::Duration;

/// The limits, with the defaults of `docs/reference/limits.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a gRPC message, in and out.
    pub message_bytes: usize,
    /// Bytes in memory of the large messages of all clients that are received or processed at once; small messages have
    /// as much again.
    pub received_bytes: usize,
    /// Bytes of answers that clients have not read yet, and of requests of pipelines that are not answered yet.
    pub answer_bytes: usize,
    /// Bytes of an error text; longer ones are truncated.
    pub error_bytes: usize,
    /// Task types on a stream.
    pub stream_types: usize,
    /// Jobs in a window.
    pub window_jobs: usize,
    /// Bytes in a window. A window without a size has `DEFAULT_WINDOW_BYTES`, or this limit if it is lower.
    pub window_bytes: u64,
    /// Streams and calls at once on one connection.
    pub streams_per_connection: u32,
    /// Connections at once.
    pub connections: usize,
    /// How long a stream may take to send its first message.
    pub first_message: Duration,
    /// Jobs that one principal may enqueue in a second; `None`: any number.
    pub principal_jobs_per_second: Option<u64>,
    /// Bytes of jobs that one principal may enqueue in a second; `None`: any number.
    pub principal_bytes_per_second: Option<u64>,
    /// Streams of one principal at once; `None`: as many as there may be connections.
    pub principal_streams: Option<usize>,
    /// Connections of one principal at once; `None`: a quarter of all.
    pub principal_connections: Option<usize>,
    /// Connections of one address at once on which nobody has authenticated yet; `None`: a quarter of all.
    pub address_connections: Option<usize>,
    /// Calls of one address in a second whose credential does not hold.
    pub address_failures_per_second: u64,
    /// Bytes that may wait for intake before calls have to wait.
    pub gathered_bytes: usize,
    /// Jobs that may wait for intake before calls have to wait.
    pub gathered_jobs: usize,
}

impl Limits {
    /// Bytes of a window without a size.
    pub const DEFAULT_WINDOW_BYTES: u64 = 64 << 20;
    /// Bytes of the text of a progress report.
    pub const PROGRESS_TEXT_BYTES: usize = 1 << 10;
    /// Bytes of a checkpoint.
    pub const CHECKPOINT_BYTES: usize = 64 << 10;
    /// Largest `max_attempts`.
    pub const MAX_ATTEMPTS: u32 = 1000;
    /// Tags of a job.
    pub const TAGS: usize = 16;
    /// Bytes of a tag.
    pub const TAG_BYTES: usize = 64;
    /// Lowest and highest priority.
    pub const PRIORITY: std::ops::RangeInclusive<i32> = -1000..=1000;

    /// Streams of one principal at once.
    pub fn streams_of_principal(&self) -> usize {
        self.principal_streams.unwrap_or(self.connections)
    }

    /// Connections of one address at once on which nobody has authenticated yet.
    pub fn connections_of_address(&self) -> usize {
        self.address_connections.unwrap_or((self.connections / 4).max(1))
    }

    /// Connections of one principal at once.
    pub fn connections_of_principal(&self) -> usize {
        self.principal_connections.unwrap_or((self.connections / 4).max(1))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 16 << 20,
            // Four of the largest messages, and as much as may wait for Postgres.
            received_bytes: 64 << 20,
            // Some pages of lists at once.
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
