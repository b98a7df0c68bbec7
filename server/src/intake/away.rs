//! Whether Postgres is away: a statement of this batch was given up after the time that calls may wait. Then what would be
//! written next is not tried: each request waits that long once, not once behind every statement before its own.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Pending;
use crate::{error::Error, store::StoreError};

pub(super) struct Away {
    timeout: Duration,
    batch: Mutex<Batch>,
}

struct Batch {
    begun: Instant,
    found: Option<Error>,
}

impl Away {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, batch: Mutex::new(Batch { begun: Instant::now(), found: None }) }
    }

    /// A new batch, a new try.
    pub(super) fn begin(&self) {
        *self.batch.lock() = Batch { begun: Instant::now(), found: None };
    }

    /// A statement failed. One whose connection ended at once says nothing: others may be good.
    pub(super) fn failed(&self, error: &StoreError) {
        let mut batch = self.batch.lock();
        let gone = matches!(error, StoreError::NotSent(_) | StoreError::Unknown(_));
        if gone && batch.begun.elapsed() >= self.timeout {
            // These were not sent, whatever became of the others.
            batch.found = Some(StoreError::NotSent(format!("no answer within {:?}", self.timeout).into()).into());
        }
    }

    /// Whether this batch has taken as long as calls may wait.
    pub(super) fn is_late(&self) -> bool {
        self.batch.lock().begun.elapsed() >= self.timeout
    }

    /// What is next would wait as long: it is not tried.
    pub(super) fn give_up(&self, error: Error) {
        self.batch.lock().found = Some(error);
    }

    /// Whether it is away, as what the callers are told.
    pub(super) fn found(&self) -> Option<Error> {
        self.batch.lock().found.clone()
    }

    /// If it is away, tells the callers so; otherwise the requests come back.
    pub(super) fn tell(&self, requests: Vec<Pending>) -> Vec<Pending> {
        let Some(error) = self.found() else { return requests };
        for request in requests {
            request.tell(Err(error.clone()));
        }
        Vec::new()
    }
}
