//! Settings of the cluster: limits that decide which jobs are accepted, so every broker and every SQL function must agree on
//! them. The database holds them (`howdah.settings`); brokers read them when they start and when they change.

use std::time::Duration;

/// The settings. Defaults and bounds are those of `server/schema/tables/settings.sql`; a test compares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Bytes of a payload, and of a result.
    pub payload_bytes: usize,
    /// Headers of a job.
    pub headers: usize,
    /// Bytes of a job's headers together.
    pub header_bytes: usize,
    /// Bytes of a key, a request key, a limit key, a fair key, a label.
    pub key_bytes: usize,
    /// Jobs in an enqueue, outcomes in a settle, ids in a cancel.
    pub batch: usize,
    /// Longest delay, and how far ahead `run_at` and `expire_at` may be.
    pub max_delay: Duration,
    /// Longest timeout of an attempt, and longest extension of it.
    pub max_timeout: Duration,
    /// Task types.
    pub task_types: usize,
}

/// Bytes that a message with one job needs besides the payload and the headers.
const MESSAGE_OVERHEAD: usize = 4 << 10;

const DAY: Duration = Duration::from_hours(24);

impl ClusterSettings {
    /// The names of the settings: in the protocol, in SQL and on the command line.
    pub const NAMES: [&'static str; 8] =
        ["payload_bytes", "headers", "header_bytes", "key_bytes", "batch", "max_delay", "max_timeout", "task_types"];

    /// The values of a new database.
    pub const DEFAULT: Self = Self {
        payload_bytes: 1 << 20,
        headers: 64,
        header_bytes: 8 << 10,
        key_bytes: 200,
        batch: 10_000,
        max_delay: DAY.saturating_mul(3650),
        max_timeout: DAY.saturating_mul(30),
        task_types: 10_000,
    };

    /// The lowest allowed values.
    pub const LOWEST: Self = Self {
        payload_bytes: 1 << 10,
        headers: 8,
        header_bytes: 1 << 10,
        key_bytes: 64,
        batch: 1_000,
        max_delay: Duration::from_secs(1),
        max_timeout: Duration::from_secs(1),
        task_types: 100,
    };

    /// The highest allowed values.
    pub const HIGHEST: Self = Self {
        payload_bytes: 1000 << 20,
        headers: 10_000,
        header_bytes: 16 << 20,
        key_bytes: 2_000,
        batch: 100_000,
        max_delay: DAY.saturating_mul(36_500),
        max_timeout: DAY.saturating_mul(3_650),
        task_types: 100_000,
    };

    /// Bytes of a message with the largest job.
    pub const fn job_bytes(&self) -> usize {
        self.payload_bytes + self.header_bytes + MESSAGE_OVERHEAD
    }
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A change of some settings; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSettingsChange {
    /// See [`ClusterSettings::payload_bytes`].
    pub payload_bytes: Option<usize>,
    /// See [`ClusterSettings::headers`].
    pub headers: Option<usize>,
    /// See [`ClusterSettings::header_bytes`].
    pub header_bytes: Option<usize>,
    /// See [`ClusterSettings::key_bytes`].
    pub key_bytes: Option<usize>,
    /// See [`ClusterSettings::batch`].
    pub batch: Option<usize>,
    /// See [`ClusterSettings::max_delay`].
    pub max_delay: Option<Duration>,
    /// See [`ClusterSettings::max_timeout`].
    pub max_timeout: Option<Duration>,
    /// See [`ClusterSettings::task_types`].
    pub task_types: Option<usize>,
}
