//! Jobs selected by id.

use std::sync::Arc;

use super::TypeId;

/// Jobs by id, with a condition on their types. A job changes its type when it moves to its fallback or its next stage, so the
/// statement that changes the job checks the permitted types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Their ids.
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
