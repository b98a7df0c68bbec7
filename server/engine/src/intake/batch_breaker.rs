//! Circuit breaker of the writer. It opens when Postgres does not answer within the timeout for the current batch, or
//! refuses several statements in a row. The remaining requests of the batch then fail without an attempt. So no request
//! waits for the timeouts of all statements before its own.

use std::time::{Duration, Instant};

use howdah_core::error::Error;
use parking_lot::Mutex;

use super::Pending;
use crate::store::StoreError;

/// Number of statements refused in a row after which Postgres is assumed to refuse all requests of the batch.
const REFUSALS: u32 = 8;

pub(super) struct BatchBreaker {
    timeout: Duration,
    batch: Mutex<Batch>,
}

struct Batch {
    begun: Instant,
    error: Option<Error>,
    /// Statements that Postgres refused since the last committed statement.
    refusals: u32,
}

impl Batch {
    fn new() -> Self {
        Self { begun: Instant::now(), error: None, refusals: 0 }
    }
}

impl BatchBreaker {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, batch: Mutex::new(Batch::new()) }
    }

    /// Starts a new batch with a closed circuit breaker.
    pub(super) fn begin(&self) {
        *self.batch.lock() = Batch::new();
    }

    /// Records a failed statement. A connection that is lost before the timeout does not count, because other
    /// connections may work.
    pub(super) fn failed(&self, error: &StoreError) {
        let mut batch = self.batch.lock();
        let gone = matches!(error, StoreError::NotSent(_) | StoreError::Unknown(_));
        if gone && batch.begun.elapsed() >= self.timeout {
            // The remaining requests were not sent, so their callers get `NotSent` even if the outcome of the failed
            // statement is unknown.
            batch.error = Some(StoreError::NotSent(format!("no answer within {:?}", self.timeout).into()).into());
        }
        if matches!(error, StoreError::RolledBack(_)) {
            batch.refusals += 1;
            if batch.refusals >= REFUSALS {
                batch.error = Some(error.clone().into());
            }
        }
    }

    /// Records a committed statement. Earlier refusals then concerned only their own requests and no longer count.
    pub(super) fn stored(&self) {
        self.batch.lock().refusals = 0;
    }

    /// Returns whether the timeout has passed since this batch began.
    pub(super) fn is_late(&self) -> bool {
        self.batch.lock().begun.elapsed() >= self.timeout
    }

    /// Opens the circuit breaker: the remaining requests of the batch fail with this error.
    pub(super) fn open(&self, error: Error) {
        self.batch.lock().error = Some(error);
    }

    /// Returns the error for the callers if the circuit breaker is open.
    pub(super) fn error(&self) -> Option<Error> {
        self.batch.lock().error.clone()
    }

    /// Answers the requests with the error if the circuit breaker is open; otherwise returns them.
    pub(super) fn reply_if_open(&self, requests: Vec<Pending>) -> Vec<Pending> {
        let Some(error) = self.error() else { return requests };
        for request in requests {
            request.reply(Err(error.clone()));
        }
        Vec::new()
    }
}
