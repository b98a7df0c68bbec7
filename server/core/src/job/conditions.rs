//! Conditions that select jobs of a task type.

use serde::{Deserialize, Serialize};

/// Conditions on jobs; all that are set must hold. SQL reads this struct as JSON under these names (`howdah.meets`), except for
/// the worker, which no table of jobs contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobConditions {
    /// Enqueued before this time, in µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before_us: Option<i64>,
    /// Enqueued at this time or later, in µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_since_us: Option<i64>,
    /// With this tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// With this fair key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// With this limit key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// At least this many attempts have started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_at_least: Option<i16>,
    /// At most this many attempts have started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_at_most: Option<i16>,
    /// Held by the worker with this public id.
    #[serde(skip)]
    pub worker_id: Option<String>,
}

impl JobConditions {
    /// Whether every job meets the conditions.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
