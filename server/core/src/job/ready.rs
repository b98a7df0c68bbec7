//! Jobs that became ready.

use super::TypeId;

/// Jobs of one type that became ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The type.
    pub type_id: TypeId,
    /// Lowest rank of the jobs.
    pub lowest_rank: i64,
    /// Number of jobs.
    pub jobs: u64,
}

impl Ready {
    /// Reports at least one ready job of a type, if the number of jobs is unknown.
    pub fn some(type_id: TypeId, lowest_rank: i64) -> Self {
        Self { type_id, lowest_rank, jobs: 1 }
    }
}
