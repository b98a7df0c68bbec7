//! Job fields that a bulk operation sets.

use serde::{Deserialize, Serialize};

/// Fields of jobs to set; unset fields stay unchanged. SQL reads this struct as JSON under these names
/// (`server/engine/schema/functions/set.sql`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BulkFields {
    /// Maximum number of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i16>,
    /// Timeout of an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// Start time in µs after 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_us: Option<i64>,
    /// Delay after the start of the bulk operation, by the database's clock. It is stored as `start_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
    /// Tags to add.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_tags: Vec<String>,
    /// Tags to remove.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove_tags: Vec<String>,
}

impl BulkFields {
    /// Whether the start time is set.
    pub const fn has_start(&self) -> bool {
        self.start_us.is_some() || self.delay_ms.is_some()
    }
}
