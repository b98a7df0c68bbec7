//! Quotas of one principal at one broker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_core::{error::Error, job::Limits};

use super::rate::Rate;
use crate::{
    memory::Account,
    metrics::{ByLimit, Refusals},
};

/// Delay before a retry when the principal has too many open streams or connections.
const LATER: Duration = Duration::from_secs(1);

/// Quotas of one principal, over all its connections.
#[derive(Debug)]
pub struct Principal {
    name: Arc<str>,
    jobs: Option<Rate>,
    bytes: Option<Rate>,
    streams: Count,
    connections: Count,
    refusals: Refusals,
    /// Accounts of the principal in the broker's shared budgets.
    pub shares: Shares,
}

/// Error: a rate is exceeded.
#[derive(Clone, Copy, Debug)]
pub struct Exceeded {
    limit: &'static str,
    units: &'static str,
    /// Time until the rate allows a request again.
    pub wait: Duration,
}

/// Accounts of one principal, one for each shared budget of memory, awaited jobs or requests.
#[derive(Debug, Default)]
pub struct Shares {
    /// Memory that large request messages occupy.
    pub large: Arc<Account>,
    /// Memory that small request messages occupy.
    pub small: Arc<Account>,
    /// Memory for answers.
    pub answers: Arc<Account>,
    /// Memory that answers of `WaitJobs` occupy.
    pub waits: Arc<Account>,
    /// Memory that request bodies on the HTTP port occupy.
    pub bodies: Arc<Account>,
    /// Number of jobs that `WaitJobs` calls wait for.
    pub waited: Arc<Account>,
    /// Number of concurrent requests on the HTTP port that enqueue jobs.
    pub sends: Arc<Account>,
}

/// A counter of open streams or connections, with a maximum.
#[derive(Debug)]
pub(super) struct Count {
    now: Arc<AtomicUsize>,
    most: usize,
}

/// Counts one open stream or connection until it is dropped.
#[derive(Debug)]
pub struct OpenGuard(Arc<AtomicUsize>);

impl Principal {
    pub(super) fn new(name: &Arc<str>, limits: &Limits, refusals: &Refusals) -> Self {
        Self {
            name: name.clone(),
            jobs: limits.principal_jobs_per_second.map(Rate::new),
            bytes: limits.principal_bytes_per_second.map(Rate::new),
            streams: Count::new(limits.streams_of_principal()),
            connections: Count::new(limits.connections_of_principal()),
            refusals: refusals.clone(),
            shares: Shares::default(),
        }
    }

    /// Counts jobs and their bytes against the principal's rates. Fails if a rate is exceeded.
    pub fn take(&self, jobs: usize, bytes: impl FnOnce() -> usize) -> Result<(), Exceeded> {
        let of_bytes = |wait| Exceeded { limit: "principal_bytes_per_second", units: "bytes of jobs", wait };
        if let Some(wait) = self.bytes.as_ref().and_then(Rate::wait_time) {
            return Err(of_bytes(wait));
        }
        if let Some(rate) = &self.jobs {
            rate.take(jobs).map_err(|wait| Exceeded { limit: "principal_jobs_per_second", units: "jobs", wait })?;
        }
        match &self.bytes {
            Some(rate) => rate.take(bytes()).map_err(of_bytes),
            None => Ok(()),
        }
    }

    /// Counts jobs and bytes that were already accepted, even if a rate is exceeded.
    pub fn force_take(&self, jobs: usize, bytes: usize) {
        for (rate, units) in [(&self.jobs, jobs), (&self.bytes, bytes)] {
            if let Some(rate) = rate {
                rate.force_take(units);
            }
        }
    }

    /// Returns the error for a request that exceeds a rate.
    pub fn refuse(&self, Exceeded { limit, units, wait }: Exceeded) -> Error {
        let message =
            format!("{:?} enqueues more {units} per second than this broker allows (limits.{limit})", self.name);
        self.refusals.get_or_create(&ByLimit { limit }).inc();
        Error::Exhausted { reason: "PRINCIPAL_RATE", message, retry_after: wait }
    }

    /// Counts a new stream until the guard is dropped. Fails if the quota is exhausted.
    pub(crate) fn open_stream(&self) -> Result<OpenGuard, Error> {
        self.streams.open().ok_or_else(|| self.too_many("principal_streams", &self.streams, "streams"))
    }

    /// Counts a new connection until the guard is dropped. Fails if the quota is exhausted.
    pub fn open_connection(&self) -> Result<OpenGuard, Error> {
        let connections = &self.connections;
        connections.open().ok_or_else(|| self.too_many("principal_connections", connections, "connections"))
    }

    /// Whether the principal's rates have no debt, so that nothing is lost if this object is evicted.
    pub(super) fn is_at_rest(&self) -> bool {
        [&self.jobs, &self.bytes].into_iter().flatten().all(Rate::is_at_rest)
    }

    fn too_many(&self, limit: &'static str, count: &Count, what: &str) -> Error {
        let message = format!(
            "{:?} has {} {what} open at this broker, which is the maximum (limits.{limit})",
            self.name, count.most
        );
        self.refusals.get_or_create(&ByLimit { limit }).inc();
        Error::Exhausted { reason: "PRINCIPAL_LIMIT", message, retry_after: LATER }
    }
}

impl Count {
    pub(super) fn new(most: usize) -> Self {
        Self { now: Arc::default(), most }
    }

    pub(super) fn open(&self) -> Option<OpenGuard> {
        let open = OpenGuard(self.now.clone());
        // If the maximum is exceeded, `open` is dropped here, which decrements the counter again.
        (self.now.fetch_add(1, Ordering::Relaxed) < self.most).then_some(open)
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(limits: &Limits) -> Principal {
        Principal::new(&"ann".into(), limits, &Refusals::default())
    }

    #[test]
    fn open_streams_and_connections_count_towards_the_quota_until_they_close() {
        let limits = Limits { principal_streams: Some(2), principal_connections: Some(1), ..Limits::default() };
        let ann = principal(&limits);
        let _one = ann.open_stream().expect("one");
        let two = ann.open_stream().expect("two");
        for _ in 0..3 {
            let refused = ann.open_stream().expect_err("three");
            assert!(refused.to_string().contains("principal_streams"), "{refused}");
            assert_eq!(refused.retry_after(), Some(LATER));
        }
        drop(two);
        ann.open_stream().expect("one was closed");
        let _connection = ann.open_connection().expect("streams are no connections");
        assert!(ann.open_connection().is_err());
    }

    #[test]
    fn a_refused_request_takes_nothing_and_is_told_when_to_come_back() {
        let limits =
            Limits { principal_jobs_per_second: Some(10), principal_bytes_per_second: Some(100), ..Limits::default() };
        let ann = principal(&limits);
        ann.take(1, || 1_000).expect("a request larger than one second passes once");
        for _ in 0..100 {
            let refused = ann.refuse(ann.take(1, || 1).expect_err("ten seconds are owed"));
            assert!(refused.to_string().contains("principal_bytes_per_second"), "{refused}");
            assert!(refused.retry_after().expect("a time") > Duration::from_secs(8), "{refused:?}");
        }
        assert_eq!(ann.jobs.as_ref().map(|jobs| jobs.take(9)), Some(Ok(())));
    }

    #[test]
    fn without_limits_everything_passes() {
        let ann = principal(&Limits::default());
        for _ in 0..1_000 {
            ann.take(usize::MAX, || usize::MAX).expect("no limit");
        }
        assert!(ann.is_at_rest());
    }
}
