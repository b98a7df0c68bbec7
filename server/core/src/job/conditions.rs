//! Jobs that a call names: conditions on the jobs of a task type, and jobs chosen by id.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::TypeId;

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

/// Jobs by id, with a condition on their types. A job changes its type when it moves to its fallback or its next stage, so the
/// statement that changes the job checks the permitted types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Ids of the jobs.
    pub ids: Vec<i64>,
    /// Permitted types of the jobs; `None`: any type.
    pub types: Option<Arc<[TypeId]>>,
}

impl Chosen {
    /// Returns a selection of the jobs `ids`, with the same permitted types.
    #[must_use]
    pub fn but(&self, ids: Vec<i64>) -> Self {
        Self { ids, types: self.types.clone() }
    }

    /// The permitted types, as a parameter of a statement.
    pub fn types(&self) -> Option<&[TypeId]> {
        self.types.as_deref()
    }
}

impl From<Vec<i64>> for Chosen {
    fn from(ids: Vec<i64>) -> Self {
        Self { ids, types: None }
    }
}
