//! What a bulk operation sets of its jobs.

use serde::{Deserialize, Serialize};

/// Fields of jobs; what is unset stays. SQL reads them as JSON under these names (`server/schema/functions/set.sql`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BulkFields {
    /// The attempts of a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i16>,
    /// The longest time of an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// When a job starts, µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_us: Option<i64>,
    /// How long after the start of the bulk operation, by the database's clock. What is stored has `start_us` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
    /// Tags that a job gets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_tags: Vec<String>,
    /// Tags that it loses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove_tags: Vec<String>,
}

impl BulkFields {
    /// Whether it sets when jobs start.
    pub const fn has_start(&self) -> bool {
        self.start_us.is_some() || self.delay_ms.is_some()
    }
}
