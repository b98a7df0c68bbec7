//! A worker's right to run one attempt of one job.

use std::{collections::HashMap, fmt, time::SystemTime};

use bytes::Bytes;

use super::{DependencyResult, JobOptions, Started, TypeId};

/// Identifies a lease: the job, and a random token that fences it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// The job.
    pub id: i64,
    /// Random token of 64 bits, new for every lease.
    pub token: i64,
}

impl fmt::Debug for Lease {
    /// Omits the token, because any caller who knows it may settle the job.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Tokens for the leases that a statement is about to create. Each is drawn independently from a cryptographic generator, so a
/// worker cannot derive other tokens from its own.
#[derive(Clone, Default)]
pub struct Tokens(Vec<i64>);

impl Tokens {
    /// Draws new tokens.
    pub fn draw(count: usize) -> Self {
        let mut tokens = vec![0; count];
        rand::fill(&mut tokens);
        Self(tokens)
    }

    /// The tokens as a parameter of a statement.
    pub fn as_vec(&self) -> &Vec<i64> {
        &self.0
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("count", &self.0.len()).finish_non_exhaustive()
    }
}

/// A claimed job to be sent to a worker.
#[derive(Clone, Debug)]
pub struct LeasedJob {
    /// The lease.
    pub lease: Lease,
    /// Task type.
    pub type_id: TypeId,
    /// Rank, which orders the ready jobs of the type.
    pub rank: i64,
    /// Number of this attempt, from 1.
    pub attempt: i16,
    /// Maximum number of attempts.
    pub max_attempts: i16,
    /// Time of the enqueue.
    pub created: SystemTime,
    /// Time at which the attempt times out; `None` for jobs without a timeout.
    pub deadline: Option<SystemTime>,
    /// Time from the claim to the deadline, in ms, by the database's clock.
    pub deadline_in_ms: Option<i64>,
    /// Time for which the job was ready before its claim, in µs.
    pub waited_us: i64,
    /// Start of the attempt.
    pub started: Started,
    /// Headers from the enqueue.
    pub headers: HashMap<String, String>,
    /// Rarely used options.
    pub options: Option<Box<JobOptions>>,
    /// Payload from the enqueue.
    pub payload: Bytes,
    /// The first dependencies of the job, with their results, as far as they fit.
    pub dependencies: Vec<DependencyResult>,
    /// Bytes that the job uses of a window: its payload, its headers as JSON, and its dependencies. Postgres computes the
    /// size of payload and headers, because a claim must only take jobs that fit.
    pub weight: u64,
}
