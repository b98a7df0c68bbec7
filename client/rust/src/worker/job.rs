//! A job as its handler receives it, with the results of the jobs that it depended on.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use howdah_proto::v1::{
    CancelReason, DependencyResult, Extend, Extension, GetResultsRequest, LeasedJob, Progress, ProgressReport,
    work_request::Message,
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{Client, Error, Result, call::call, time};

use super::{ledger::Key, requests::Request, session::Mail};

/// One attempt of one job, to run now.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// The job's id, unique in the database.
    pub id: i64,
    /// Lease token. The SQL function `howdah.complete` takes it, to complete the job in the transaction of the worker's writes.
    pub token: i64,
    /// The task type to which the worker subscribed.
    pub task_type: String,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The maximum number of attempts, after which the job is dead.
    pub max_attempts: u32,
    /// The time at which the attempt times out unless it is extended, by the database's clock; `None` without a timeout.
    pub deadline: Option<SystemTime>,
    /// The payload.
    pub payload: Bytes,
    /// The headers.
    pub headers: HashMap<String, String>,
    /// The tags without duplicates, in the order of the enqueue.
    pub tags: Vec<String>,
    /// Enqueue time, by the database's clock.
    pub created: SystemTime,
    /// The producer's W3C trace context; may be empty.
    pub traceparent: String,
    /// The producer's W3C trace state; may be empty.
    pub tracestate: String,
    checkpoint: Bytes,
    dependencies: Option<Arc<Dependencies>>,
    pub(super) lease: Arc<Lease>,
}

/// State shared by a running job and its worker.
pub(crate) struct Lease {
    pub(super) key: Key,
    /// Index of the task type whose slot the handler uses.
    pub(super) task_type: usize,
    pub(super) cancel: CancellationToken,
    /// The reason why the broker ended the lease.
    reason: OnceLock<CancelReason>,
    mail: mpsc::UnboundedSender<Mail>,
    /// Time that [`Job::extend`] and [`Job::report`] wait for the broker's answer.
    timeout: Duration,
}

impl Job {
    /// Parses the payload as JSON. An empty payload is `null`, which parses as `Option`, `()` and `serde_json::Value`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        let payload = if self.payload.is_empty() { b"null" } else { &self.payload[..] };
        Ok(serde_json::from_slice(payload)?)
    }

    /// Waits until the handler should abandon the job: the job was cancelled, its deadline passed, its lease was lost, or the
    /// stop timeout of the worker passed. The handler's outcome then has no effect, unless only the stop timeout has passed, or
    /// the broker has kept a lease that the worker considers lost.
    pub async fn cancelled(&self) {
        self.lease.cancel.cancelled().await;
    }

    /// Whether the handler should abandon the job.
    pub fn is_cancelled(&self) -> bool {
        self.lease.cancel.is_cancelled()
    }

    /// Returns a token that is cancelled when the handler should abandon the job. The handler can pass it to other functions.
    pub fn cancel_token(&self) -> CancellationToken {
        self.lease.cancel.clone()
    }

    /// The reason why the broker ended the lease. `None` while the lease exists, even when the worker's stop timeout has
    /// passed.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.lease.reason.get().copied()
    }

    /// Sets the deadline to this long from now, 1 ms to 30 days.
    ///
    /// [`Error::LeaseLost`] means that the worker no longer holds the job. If the broker is unavailable, this retries for at most
    /// the client's request timeout.
    pub async fn extend(&self, duration: Duration) -> Result<()> {
        let extension = Extension { id: self.id, token: self.token, duration: Some(time::to_proto(duration)) };
        self.lease.request("extend", Message::Extend(Extend { extensions: vec![extension] })).await
    }

    /// Reports progress: the completed fraction (0 to 1), a text of at most 1 KiB without control characters, or both.
    /// `howdah job ID` shows it.
    ///
    /// Fails like [`extend`](Self::extend).
    pub async fn progress(&self, fraction: impl Into<Option<f64>>, text: impl Into<String>) -> Result<()> {
        self.report(ProgressReport { fraction: fraction.into(), text: Some(text.into()), ..Default::default() }).await
    }

    /// Stores a checkpoint of at most 64 KiB with the job, replacing the previous one. The next attempt gets it from
    /// [`last_checkpoint`](Self::last_checkpoint), however this attempt ends. An empty checkpoint removes the stored one.
    ///
    /// Fails like [`extend`](Self::extend). When this returns, the checkpoint is stored.
    pub async fn checkpoint(&self, bytes: impl Into<Bytes>) -> Result<()> {
        self.report(ProgressReport { checkpoint: Some(bytes.into()), ..Default::default() }).await
    }

    /// The checkpoint stored by an earlier attempt.
    pub fn last_checkpoint(&self) -> Option<&Bytes> {
        Some(&self.checkpoint).filter(|bytes| !bytes.is_empty())
    }

    /// The jobs that this job ran after (`after`, then `after_local`), with their results, in order. With
    /// `DependencyFailure::Run`, look at `state`: a dependency may have failed. A result is unknown (`missing`) if the database
    /// no longer contains the dependency.
    ///
    /// ```no_run
    /// # use howdah_client::{Job, Result};
    /// # async fn f(job: Job) -> Result<usize> {
    /// let (mut results, mut bytes) = (job.results(), 0);
    /// while let Some(part) = results.next().await? {
    ///     bytes += part.result.len();
    /// }
    /// # Ok(bytes) }
    /// ```
    pub fn results(&self) -> Results {
        Results { dependencies: self.dependencies.clone(), returned: 0, page: VecDeque::new() }
    }

    /// Reports progress and a checkpoint together. The job's id and token are filled in. Unset fields keep their values.
    ///
    /// Fails like [`extend`](Self::extend).
    pub async fn report(&self, report: ProgressReport) -> Result<()> {
        let report = ProgressReport { id: self.id, token: self.token, ..report };
        self.lease.request("report progress", Message::Progress(Progress { reports: vec![report] })).await
    }

    pub(crate) fn new(mut job: LeasedJob, lease: Arc<Lease>, client: Option<&Client>) -> Self {
        Self {
            dependencies: Dependencies::take(&mut job, client),
            id: job.id,
            token: job.token,
            task_type: job.task_type,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            deadline: time::time_from_proto(job.deadline),
            payload: job.payload,
            headers: job.headers,
            tags: job.tags,
            created: time::time_from_proto(job.create_time).unwrap_or(SystemTime::UNIX_EPOCH),
            traceparent: job.traceparent,
            tracestate: job.tracestate,
            checkpoint: job.checkpoint,
            lease,
        }
    }
}

impl Lease {
    pub(crate) fn new(key: Key, task_type: usize, mail: mpsc::UnboundedSender<Mail>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self { key, task_type, cancel: CancellationToken::new(), reason: OnceLock::new(), mail, timeout })
    }

    /// Tells the handler to abandon the job. If called again, the first reason is kept. `Unspecified` is no reason.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        if reason != CancelReason::Unspecified {
            let _ = self.reason.set(reason);
        }
        self.cancel.cancel();
    }

    /// Sends an extension or a progress report, and waits for the broker's answer.
    async fn request(&self, operation: &'static str, message: Message) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Mail::Request(Request { key: self.key, message, reply }));
        match timeout(self.timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_dropped)) => Err(Error::Stopped("worker")),
            Err(_) => Err(Error::Deadline { operation, after: self.timeout }.with_effect_unknown(true)),
        }
    }

    /// Sends a message to the worker, unless it has ended.
    pub(crate) fn send(&self, mail: Mail) {
        let _ = self.mail.send(mail);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("cancelled", &self.cancel.is_cancelled()).finish_non_exhaustive()
    }
}

/// The dependencies of a running job.
#[derive(Debug)]
pub(crate) struct Dependencies {
    id: i64,
    count: usize,
    /// The first dependencies, as the broker sent them with the job.
    sent: Vec<DependencyResult>,
    /// `None` in tests without a broker.
    client: Option<Client>,
}

impl Dependencies {
    /// Takes the dependencies from the broker's message. `None` if the job has none.
    pub(crate) fn take(job: &mut LeasedJob, client: Option<&Client>) -> Option<Arc<Self>> {
        let count = usize::try_from(job.dependency_count).unwrap_or_default();
        let sent = std::mem::take(&mut job.after);
        (count > 0).then(|| Arc::new(Self { id: job.id, count, sent, client: client.cloned() }))
    }
}

/// Returns the results of a job's dependencies, one after the other; see [`Job::results`](crate::Job::results).
#[derive(Debug)]
pub struct Results {
    dependencies: Option<Arc<Dependencies>>,
    /// Number of dependencies that were returned.
    returned: usize,
    page: VecDeque<DependencyResult>,
}

impl Results {
    /// Returns the next dependency with its result; `None` after the last one. Asks the broker for results that did not come
    /// with the job.
    pub async fn next(&mut self) -> Result<Option<DependencyResult>> {
        let Some(dependencies) = &self.dependencies else { return Ok(None) };
        if self.returned >= dependencies.count {
            return Ok(None);
        }
        if self.page.is_empty() {
            let sent = dependencies.sent.get(self.returned).filter(|sent| !sent.truncated);
            match (sent, &dependencies.client) {
                (Some(sent), _) => self.page.push_back(sent.clone()),
                (None, Some(client)) => {
                    let start = i32::try_from(self.returned).unwrap_or(i32::MAX);
                    let request = GetResultsRequest { id: dependencies.id, start };
                    self.page = call!(Read client.workers().get_results(request))?.results.into();
                }
                (None, None) => {}
            }
        }
        self.returned += 1;
        Ok(self.page.pop_front())
    }
}
