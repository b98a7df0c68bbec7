//! Jobs that a call names by their ids.

use std::sync::Arc;

use super::TypeId;

/// Jobs by id. A job changes its type when it goes to its fallback or its next stage; so what the caller may change is checked
/// by the statement that changes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Their ids.
    pub ids: Vec<i64>,
    /// Only while they have one of these types; `None`: whatever their type is.
    pub types: Option<Arc<[TypeId]>>,
}

impl Chosen {
    /// The same types, other jobs.
    #[must_use]
    pub fn but(&self, ids: Vec<i64>) -> Self {
        Self { ids, types: self.types.clone() }
    }

    /// The types, as a statement takes them.
    pub fn types(&self) -> Option<&[TypeId]> {
        self.types.as_deref()
    }
}

impl From<Vec<i64>> for Chosen {
    fn from(ids: Vec<i64>) -> Self {
        Self { ids, types: None }
    }
}
