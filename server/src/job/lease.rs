//! A worker's right to run one attempt of one job.

use std::{collections::HashMap, time::SystemTime};

use bytes::Bytes;

use super::{JobOptions, TypeId};

/// Identifies a lease: the job, and the random token that fences it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// The job.
    pub id: i64,
    /// 63 random bits, new for every lease.
    pub token: i64,
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
