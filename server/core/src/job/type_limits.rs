//! Limits of task types on claims: concurrency, rates and the brake.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Concurrency and rate limits of a task type and of each of its limit keys, and its brake; `None`: no limit. They are
/// stored as columns and read as JSON (`howdah.limits_of`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeLimits {
    /// Maximum number of running jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<i32>,
    /// Maximum start rate, in jobs per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Burst: maximum number of jobs that start at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_burst: Option<i32>,
    /// Maximum number of running jobs per limit key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_max_running: Option<i32>,
    /// Whether a job with a limit key counts as running while it waits for its next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_strict: Option<bool>,
    /// Minimum time in ms from the start of a job to the start of the next job with the same limit key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_min_gap_ms: Option<i64>,
    /// Whether the gap counts from the end of a job, so that jobs with the same limit key run one at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_gap_from_end: Option<bool>,
    /// Maximum start rate per limit key, in jobs per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_rate_per_s: Option<f64>,
    /// Burst per limit key: maximum number of jobs that start at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_rate_burst: Option<i32>,
    /// Number of failed attempts in a row that starts the brake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brake_failures: Option<i32>,
    /// First pause of the brake in ms; set with `brake_failures`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brake_initial_ms: Option<i64>,
    /// Longest pause of the brake in ms; set with `brake_failures`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brake_max_ms: Option<i64>,
}

impl TypeLimits {
    /// Whether a claim must check how many jobs it may take.
    pub fn bind_claims(&self) -> bool {
        self.max_running.is_some() || self.rate_per_s.is_some() || self.brake_failures.is_some()
    }

    /// Whether the end of a job may permit the start of another one.
    pub fn bind_ends(&self) -> bool {
        self.max_running.is_some() || self.key_max_running.is_some() || self.key_gap_from_end.is_some()
    }
}

/// State of the brake of a task type that is braked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Braked {
    /// Start of the brake.
    pub since: SystemTime,
    /// Number of failed attempts in a row.
    pub failures: i64,
    /// Earliest time of the next trial.
    pub next: SystemTime,
}
