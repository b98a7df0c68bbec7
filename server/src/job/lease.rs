//! A worker's right to run one attempt of one job.

use std::{collections::HashMap, fmt, time::SystemTime};

use bytes::Bytes;

use super::{JobOptions, Started, TypeId};

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
    /// Its task type.
    pub type_id: TypeId,
    /// Its position in the order of its type.
    pub rank: i64,
    /// The number of this attempt, from 1.
    pub attempt: i16,
    /// Attempts at most.
    pub max_attempts: i16,
    /// When it was enqueued.
    pub created: SystemTime,
    /// When the attempt times out.
    pub deadline: Option<SystemTime>,
    /// The deadline in ms after the claim, by the database's clock.
    pub deadline_in_ms: Option<i64>,
    /// How long the job was ready before it was claimed, µs.
    pub waited_us: i64,
    /// When the attempt started.
    pub started: Started,
    /// Headers, as enqueued.
    pub headers: HashMap<String, String>,
    /// Options that few jobs have.
    pub options: Option<Box<JobOptions>>,
    /// Payload, as enqueued.
    pub payload: Bytes,
    /// Bytes that it takes up in a window: the payload, and the headers as JSON. Postgres counts them, because a claim must
    /// take only jobs that fit.
    pub weight: u64,
}
