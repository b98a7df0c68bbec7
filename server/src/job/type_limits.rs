//! Concurrency and rate limits of task types.

use serde::{Deserialize, Serialize};

/// Limits of a type, and of each of its limit keys; `None`: no limit. Stored as columns, read as JSON (`howdah.limits_of`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeLimits {
    /// Maximum number of running jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<i32>,
    /// Start rate in jobs per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Burst: maximum number of jobs that start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_burst: Option<i32>,
    /// Maximum number of running jobs per key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_max_running: Option<i32>,
    /// Whether a job of a key counts as running while it waits for its next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_strict: Option<bool>,
    /// Minimum time between two starts of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_min_gap_ms: Option<i64>,
    /// Start rate of a key in jobs per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_rate_per_s: Option<f64>,
    /// Burst of a key: maximum number of jobs that start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_rate_burst: Option<i32>,
}

impl TypeLimits {
    /// Whether a claim must check how many jobs it may take.
    pub fn bind_claims(&self) -> bool {
        self.max_running.is_some() || self.rate_per_s.is_some()
    }

    /// Whether the end of a job may permit the start of another one.
    pub fn bind_ends(&self) -> bool {
        self.max_running.is_some() || self.key_max_running.is_some()
    }
}
