//! A job as its handler sees it.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use howdah_proto::v1::{CancelReason, LeasedJob, ProgressReport};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result, time};

use super::{ledger::Key, mailbox::Mailbox, outcome::Outcome};

/// One attempt of one job, to be run now.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// Its number, unique in the database.
    pub id: i64,
    /// Proves the lease; for `howdah.complete` in SQL, which ends the job in the same transaction
    /// as the worker's own writes.
    pub token: i64,
    /// The name subscribed by.
    pub task_type: String,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// How many there will be at most.
    pub max_attempts: u32,
    /// When the attempt is over if not extended, by the database's clock; `None`: never.
    pub deadline: Option<SystemTime>,
    /// What was enqueued.
    pub payload: Bytes,
    /// What was enqueued.
    pub headers: HashMap<String, String>,
    /// When it was enqueued, by the database's clock.
    pub created: SystemTime,
    /// The producer's W3C trace context; empty: none.
    pub traceparent: String,
    /// The producer's W3C trace state; empty: none.
    pub tracestate: String,
    checkpoint: Bytes,
    lease: Arc<Lease>,
}

/// What a running job and its worker share.
pub(crate) struct Lease {
    key: Key,
    cancel: CancellationToken,
    reason: AtomicI32,
    mailbox: Arc<Mailbox>,
    /// How long an extension or a report may take.
    patience: Duration,
}

impl Job {
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// The payload as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(serde_json::from_slice(&self.payload)?)
    }

    /// Waits until the job should be given up: somebody cancelled it, its deadline passed, its
    /// lease was lost, or the worker stops and has waited long enough. What the handler returns
    /// after that is dropped, unless the lease turns out to be still there.
    pub async fn cancelled(&self) {
        self.lease.cancel.cancelled().await;
    }

    /// Whether the job should be given up.
    pub fn is_cancelled(&self) -> bool {
        self.lease.cancel.is_cancelled()
    }

    /// Fires when the job should be given up; to hand on to what the handler calls.
    pub fn cancel_token(&self) -> CancellationToken {
        self.lease.cancel.clone()
    }

    /// Why the broker cancelled it; `None` while it has not (a worker that stops gives no reason).
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        CancelReason::try_from(self.lease.reason.load(Ordering::Acquire))
            .ok()
            .filter(|reason| *reason != CancelReason::Unspecified)
    }

    /// Moves the deadline to this long from now, 1 ms to 30 days.
    ///
    /// [`Error::LeaseLost`]: the job is somebody else's by now. Tried again while the broker is
    /// away, for the client's request timeout at most.
    pub async fn extend(&self, duration: Duration) -> Result<()> {
        let lease = &self.lease;
        lease.answer("extend", lease.mailbox.extend(lease.key, time::to_proto(duration))).await
    }

    /// Says how far the job has come: a part of 1, a text of at most 1 KiB (no control characters), or both.
    /// Shown by `howdah job ID`.
    ///
    /// Fails as [`extend`](Self::extend) does.
    pub async fn progress(&self, fraction: impl Into<Option<f64>>, text: impl Into<String>) -> Result<()> {
        self.report(ProgressReport { fraction: fraction.into(), text: Some(text.into()), ..Default::default() }).await
    }

    /// Keeps at most 64 KiB with the job, in place of what was kept before. However this attempt ends, the
    /// next one finds them with [`last_checkpoint`](Self::last_checkpoint). Empty: none any more.
    ///
    /// Fails as [`extend`](Self::extend) does. Stored when this returns.
    pub async fn checkpoint(&self, bytes: impl Into<Bytes>) -> Result<()> {
        self.report(ProgressReport { checkpoint: Some(bytes.into()), ..Default::default() }).await
    }

    /// What an attempt before this one has left for it.
    pub fn last_checkpoint(&self) -> Option<&Bytes> {
        Some(&self.checkpoint).filter(|bytes| !bytes.is_empty())
    }

    /// Progress and checkpoint in one; the job's id and token are filled in. What is not set stays as it was.
    ///
    /// Fails as [`extend`](Self::extend) does.
    pub async fn report(&self, report: ProgressReport) -> Result<()> {
        let lease = &self.lease;
        lease.answer("report progress", lease.mailbox.report(lease.key, report)).await
    }

    pub(crate) fn new(job: LeasedJob, lease: Arc<Lease>) -> Self {
        Self {
            id: job.id,
            token: job.token,
            task_type: job.task_type,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            deadline: time::time_from_proto(job.deadline),
            payload: job.payload,
            headers: job.headers,
            created: time::time_from_proto(job.create_time).unwrap_or(SystemTime::UNIX_EPOCH),
            traceparent: job.traceparent,
            tracestate: job.tracestate,
            checkpoint: job.checkpoint,
            lease,
        }
    }
}

impl Lease {
    pub(crate) fn new(key: Key, mailbox: Arc<Mailbox>, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            key,
            cancel: CancellationToken::new(),
            reason: AtomicI32::new(CancelReason::Unspecified as i32),
            mailbox,
            patience,
        })
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Tells the handler to stop. The first reason stays.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        let none = CancelReason::Unspecified as i32;
        let order = Ordering::AcqRel;
        let _ = self.reason.compare_exchange(none, reason as i32, order, Ordering::Acquire);
        self.cancel.cancel();
    }

    /// Waits for what the broker says to a request.
    async fn answer(&self, what: &'static str, answer: oneshot::Receiver<Result<()>>) -> Result<()> {
        match tokio::time::timeout(self.patience, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_dropped)) => Err(Error::Stopped("worker")),
            Err(_) => Err(Error::Deadline { what, after: self.patience }),
        }
    }

    /// The handler has ended.
    pub(crate) fn done(&self, outcome: Outcome) {
        self.mailbox.done(self.key, outcome);
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.cancel
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("cancelled", &self.cancel.is_cancelled()).finish_non_exhaustive()
    }
}
