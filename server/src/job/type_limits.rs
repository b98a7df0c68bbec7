//! How many jobs of a type may run, and how fast they may start.

use serde::{Deserialize, Serialize};

/// Limits of a type, and of each of its limit keys; `None`: no limit. Stored as columns, read as JSON
/// (`howdah.limits_of`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TypeLimits {
    /// Jobs that may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<i32>,
    /// Jobs that may start in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Jobs that may start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_burst: Option<i32>,
    /// Jobs of a key that may run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_max_running: Option<i32>,
    /// Whether a job of a key counts as running while it waits for its next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_strict: Option<bool>,
    /// Shortest time between two starts of a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_min_gap_ms: Option<i64>,
    /// Jobs of a key that may start in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_rate_per_s: Option<f64>,
    /// Jobs of a key that may start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_rate_burst: Option<i32>,
}

impl TypeLimits {
    /// Whether a claim must look up how many jobs it may take.
    pub fn bind_claims(&self) -> bool {
        self.max_running.is_some() || self.rate_per_s.is_some()
    }

    /// Whether the end of a job may let another one start.
    pub fn bind_ends(&self) -> bool {
        self.max_running.is_some() || self.key_max_running.is_some()
    }
}
