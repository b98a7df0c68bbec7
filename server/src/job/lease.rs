//! A worker's right to run one attempt of one job.

use std::{collections::HashMap, fmt, time::SystemTime};

use bytes::Bytes;

use super::{JobOptions, TypeId};

/// Names a lease: the job, and the random token that fences it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// The job.
    pub id: i64,
    /// New for every lease; 64 random bits.
    pub token: i64,
}

impl fmt::Debug for Lease {
    /// Without the token: who has it may settle the job.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Tokens for leases that a statement is about to make. Each has random bits of its own, from a cryptographic generator: a
/// worker that knows its token knows nothing of any other.
#[derive(Clone, Default)]
pub struct Tokens(Vec<i64>);

impl Tokens {
    /// New ones.
    pub fn draw(count: usize) -> Self {
        let mut tokens = vec![0; count];
        rand::fill(&mut tokens);
        Self(tokens)
    }

    /// As a parameter of a statement.
    pub fn as_vec(&self) -> &Vec<i64> {
        &self.0
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("count", &self.0.len()).finish_non_exhaustive()
    }
}

/// A claimed job on its way to a worker.
#[derive(Clone, Debug)]
pub struct LeasedJob {
    /// The lease.
    pub lease: Lease,
    /// Its type.
    pub type_id: TypeId,
    /// Its place in the order of its type.
    pub rank: i64,
    /// Which attempt this is, from 1.
    pub attempt: i16,
    /// How many there will be at most.
    pub max_attempts: i16,
    /// When it was enqueued.
    pub created: SystemTime,
    /// When the attempt is over.
    pub deadline: Option<SystemTime>,
    /// The same, in ms from the claim, on the database's clock.
    pub deadline_in_ms: Option<i64>,
    /// How long it had been ready when it was claimed, µs.
    pub waited_us: i64,
    /// What was enqueued.
    pub headers: HashMap<String, String>,
    /// What few jobs have.
    pub options: Option<Box<JobOptions>>,
    /// What was enqueued.
    pub payload: Bytes,
    /// Bytes that it weighs in a window: payload, and headers as JSON. Postgres counts them, so that
    /// what is claimed is what fits.
    pub weight: u64,
}
