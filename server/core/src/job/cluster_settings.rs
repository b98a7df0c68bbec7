//! Cluster settings: limits that decide which jobs are accepted, so all brokers and SQL functions must agree on them. They are
//! stored in the database (`howdah.settings`). Brokers read them at their start and after each change.

use std::time::Duration;

/// Values of the cluster settings. A test checks that the defaults and bounds equal those in
/// `server/engine/schema/tables/settings.sql`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Maximum size of a payload or a result, in bytes.
    pub payload_bytes: usize,
    /// Maximum number of headers of a job.
    pub headers: usize,
    /// Maximum total size of a job's headers, in bytes.
    pub header_bytes: usize,
    /// Maximum size of a key, a request key, a limit key, a fair key or a label, in bytes.
    pub key_bytes: usize,
    /// Maximum number of jobs in an enqueue, outcomes in a settle, or ids in a cancel.
    pub batch: usize,
    /// Maximum delay, and maximum distance of `run_at` and `expire_at` from now.
    pub max_delay: Duration,
    /// Maximum timeout of an attempt, and maximum extension of its deadline.
    pub max_timeout: Duration,
    /// Maximum number of task types.
    pub task_types: usize,
    /// Number of days after which dead jobs are discarded. 0: they are kept.
    pub dead_days: usize,
}

/// Bytes of a gRPC message with one job, besides its payload and headers.
const MESSAGE_OVERHEAD: usize = 4 << 10;

const DAY: Duration = Duration::from_hours(24);

impl ClusterSettings {
    /// Names of the settings in the protocol, in SQL and on the command line.
    pub const NAMES: [&'static str; 9] = [
        "payload_bytes",
        "headers",
        "header_bytes",
        "key_bytes",
        "batch",
        "max_delay",
        "max_timeout",
        "task_types",
        "dead_days",
    ];

    /// Settings of a new database.
    pub const DEFAULT: Self = Self {
        payload_bytes: 1 << 20,
        headers: 64,
        header_bytes: 8 << 10,
        key_bytes: 200,
        batch: 10_000,
        max_delay: DAY.saturating_mul(3650),
        max_timeout: DAY.saturating_mul(30),
        task_types: 10_000,
        dead_days: 0,
    };

    /// Lowest allowed values.
    pub const LOWEST: Self = Self {
        payload_bytes: 1 << 10,
        headers: 8,
        header_bytes: 1 << 10,
        key_bytes: 64,
        batch: 1_000,
        max_delay: Duration::from_secs(1),
        max_timeout: Duration::from_secs(1),
        task_types: 100,
        dead_days: 1,
    };

    /// Highest allowed values.
    pub const HIGHEST: Self = Self {
        payload_bytes: 1000 << 20,
        headers: 10_000,
        header_bytes: 16 << 20,
        key_bytes: 2_000,
        batch: 100_000,
        max_delay: DAY.saturating_mul(36_500),
        max_timeout: DAY.saturating_mul(3_650),
        task_types: 100_000,
        dead_days: 3_650,
    };

    /// Maximum size of a gRPC message with one job, in bytes.
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
    /// See [`ClusterSettings::dead_days`].
    pub dead_days: Option<usize>,
}
