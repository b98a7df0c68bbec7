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
    /// Lowest and highest priority.
    pub const PRIORITY: std::ops::RangeInclusive<i32> = -1000..=1000;
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
            gathered_bytes: 64 << 20,
            gathered_jobs: 100_000,
        }
    }
}
