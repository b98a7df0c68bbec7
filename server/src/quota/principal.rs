//! What one principal uses of one broker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::rate::Rate;
use crate::{
    error::Error,
    job::Limits,
    memory::Account,
    metrics::{ByLimit, Refusals},
};

/// When to try again, if that depends on what the principal itself does.
const LATER: Duration = Duration::from_secs(1);

/// The use of one principal, of all its connections together.
#[derive(Debug)]
pub(crate) struct Principal {
    name: Arc<str>,
    jobs: Option<Rate>,
    bytes: Option<Rate>,
    streams: Count,
    connections: Count,
    refusals: Refusals,
    /// Of the memory and the places that all share.
    pub(crate) shares: Shares,
}

/// A rate that is used up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exceeded {
    limit: &'static str,
    units: &'static str,
    /// How long until the rate allows something again.
    pub(crate) wait: Duration,
}

/// The accounts of one principal in each memory. Places are shared as memory is.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// For large messages.
    pub(crate) large: Arc<Account>,
    /// For small messages.
    pub(crate) small: Arc<Account>,
    /// For answers.
    pub(crate) answers: Arc<Account>,
    /// For the answers of `WaitJobs`.
    pub(crate) waits: Arc<Account>,
    /// For bodies over HTTP.
    pub(crate) bodies: Arc<Account>,
    /// Of the places for jobs that callers wait for.
    pub(crate) waited: Arc<Account>,
    /// Of the places for requests over HTTP that send jobs.
    pub(crate) sends: Arc<Account>,
}

/// How many are open, and may be.
#[derive(Debug)]
pub(super) struct Count {
    now: Arc<AtomicUsize>,
    most: usize,
}

/// Something that is open, and counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<AtomicUsize>);

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

    /// Takes these jobs from the rates, or nothing if one of them is used up.
    pub(crate) fn take(&self, jobs: usize, bytes: impl FnOnce() -> usize) -> Result<(), Exceeded> {
        let of_bytes = |wait| Exceeded { limit: "principal_bytes_per_second", units: "bytes of jobs", wait };
        if let Some(wait) = self.bytes.as_ref().and_then(Rate::is_used_up) {
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

    /// Takes what has passed already.
    pub(crate) fn owe(&self, jobs: usize, bytes: usize) {
        for (rate, units) in [(&self.jobs, jobs), (&self.bytes, bytes)] {
            if let Some(rate) = rate {
                rate.owe(units);
            }
        }
    }

    /// The refusal of a request that exceeds a rate.
    pub(crate) fn refuse(&self, Exceeded { limit, units, wait }: Exceeded) -> Error {
        let message =
            format!("{:?} enqueues more {units} in a second than this broker allows (limits.{limit})", self.name);
        self.refusals.get_or_create(&ByLimit { limit }).inc();
        Error::Exhausted { reason: "PRINCIPAL_RATE", message, retry_after: wait }
    }

    /// One more stream.
    pub(crate) fn open_stream(&self) -> Result<Open, Error> {
        self.streams.open().ok_or_else(|| self.too_many("principal_streams", &self.streams, "streams"))
    }

    /// One more connection.
    pub(crate) fn open_connection(&self) -> Result<Open, Error> {
        let connections = &self.connections;
        connections.open().ok_or_else(|| self.too_many("principal_connections", connections, "connections"))
    }

    /// Whether it owes nothing to its rates.
    pub(super) fn is_at_rest(&self) -> bool {
        [&self.jobs, &self.bytes].into_iter().flatten().all(Rate::is_at_rest)
    }

    fn too_many(&self, limit: &'static str, count: &Count, what: &str) -> Error {
        let message = format!(
            "{:?} has {} {what} open at this broker, which is the most (limits.{limit})",
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

    pub(super) fn open(&self) -> Option<Open> {
        let open = Open(self.now.clone());
        // Dropping it again, if there are too many, takes it off.
        (self.now.fetch_add(1, Ordering::Relaxed) < self.most).then_some(open)
    }
}

impl Drop for Open {
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
    fn what_is_open_is_counted_until_it_is_closed() {
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
        ann.take(1, || 1_000).expect("what is larger than a second passes once");
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
