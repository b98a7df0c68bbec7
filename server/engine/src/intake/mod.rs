//! Step 1, enqueue: gathers requests, writes them in batches, and answers after the commit.
//!
//! Natural batching (group commit without a timer): a free writer takes all queued requests. An idle broker writes a
//! single request immediately; under load, batches grow.

mod backlog;
mod batch_breaker;
mod direct;
mod keyed;
mod locked;
mod plain;
mod queue;
mod rounds;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_core::{
    config::Config,
    error::Error,
    job::{Enqueued, HistoryMode, NewJob, PRIORITY_STEP, RequestKey, TaskTypeName, TypeId, TypeSettings, rank_base},
};
use tokio::sync::oneshot;

use crate::{
    batch::{Capacity, Size},
    critical::CriticalTasks,
    dispatch::Dispatch,
    metrics::Metrics,
    registry::Registry,
    side_lane::{self, Closer, SideLane},
    store::{LockWait, PlainJob, RequestKeys, Store, StoreError},
    wake::Wake,
};
use backlog::{Admitted, Backlogs, Bounded};
use batch_breaker::BatchBreaker;
pub(crate) use keyed::{repeat, request_forgotten};
use locked::{LockDeadline, LockReason, Locked};
pub use queue::JOB_BYTES;
pub(crate) use queue::Queue;
use rounds::Kind;

/// Maximum size of a statement, unless one request is larger: the number of jobs, and the bytes (8 MiB of payloads,
/// plus the memory of the jobs).
const BATCH: Size = Size { items: BATCH_JOBS, bytes: (8 << 20) + BATCH_JOBS * queue::JOB_BYTES };
const BATCH_JOBS: usize = 4_000;
/// Payloads above this size are stored in their own table, so that they are not copied when the job row moves between
/// tables. For a payload of 1 KiB this takes 1.8 bytes of WAL per byte of payload instead of 2.5. For smaller payloads,
/// the additional row and index entry cost more than that saves.
const OUT_OF_LINE_BYTES: usize = 1_024;
/// The side lane for lock-blocked requests holds at most the queue's limits divided by this number.
const LOCKED_SHARE: usize = 4;
/// Maximum number of attempts for a batch that is rolled back by conflicts with other transactions.
const CONFLICT_TRIES: u32 = 5;

/// A queued enqueue request.
pub(crate) struct Pending {
    jobs: Vec<Resolved>,
    request: Option<RequestKey>,
    weight: usize,
    /// Reserved memory, held until the request is answered.
    _room: Capacity,
    /// Reserved room in the bounded backlogs of its task types.
    admission: Option<Admitted>,
    /// Maximum wait for another transaction's lock.
    lock_deadline: LockDeadline,
    reply: oneshot::Sender<Result<Vec<Enqueued>, Error>>,
}

/// A job with the settings of its task type applied.
pub(crate) struct Resolved {
    job: NewJob,
    type_id: TypeId,
    max_attempts: i16,
    rank_base: i64,
    out_of_line: bool,
}

impl Resolved {
    pub(crate) fn as_plain(&self) -> PlainJob<'_> {
        let Self { job, type_id, max_attempts, rank_base, out_of_line } = self;
        PlainJob {
            job,
            type_id: *type_id,
            max_attempts: *max_attempts,
            rank_base: *rank_base,
            out_of_line: *out_of_line,
        }
    }
}

impl Pending {
    fn is_plain(&self) -> bool {
        self.jobs.iter().all(|j| j.job.is_plain())
    }

    fn is_coordinated(&self) -> bool {
        self.jobs.iter().any(|j| j.job.needs_coordination())
    }

    /// Answers the caller, if it still waits.
    fn reply(self, answer: Result<Vec<Enqueued>, Error>) {
        // The reservation is released before the answer, so that the caller's next request does not count these jobs as
        // still in progress.
        drop(self.admission);
        let _ = self.reply.send(answer);
    }
}

/// Waits for the answer to a queued request. The request is stored even if this value is dropped, unless another
/// transaction's lock blocks it.
pub struct Enqueuing {
    begun: Instant,
    /// Time at which the caller is told that its request waits for a lock, and the text of that error.
    locked: Option<(Instant, LockReason)>,
    answer: oneshot::Receiver<Result<Vec<Enqueued>, Error>>,
    metrics: Arc<Metrics>,
}

impl Enqueuing {
    /// Waits until the jobs are committed.
    pub async fn stored(self) -> Result<Vec<Enqueued>, Error> {
        let mut answer = self.answer;
        let mut answered = None;
        if let Some((at, why)) = self.locked {
            answered = tokio::time::timeout_at(at.into(), &mut answer).await.ok();
            let why = why.lock().take();
            if let (None, Some(why)) = (&answered, why) {
                return Err(Error::Deadline(why));
            }
        }
        let answer = match answered {
            Some(answer) => answer,
            None => answer.await,
        };
        let answer = answer.unwrap_or_else(|_| Err(Error::Unavailable("the broker is stopping".into())));
        self.metrics.enqueue_latency.observe(self.begun.elapsed().as_secs_f64());
        answer
    }
}

/// Entry point for enqueue requests.
pub struct Intake {
    queue: Arc<Queue>,
    registry: Arc<Registry>,
    backlogs: Arc<Backlogs>,
    metrics: Arc<Metrics>,
    lock_wait: Duration,
}

/// State of the writer.
#[derive(Clone)]
struct Writer {
    store: Store,
    wake: Wake,
    dispatch: Arc<Dispatch>,
    metrics: Arc<Metrics>,
    breaker: Arc<BatchBreaker>,
}

impl Intake {
    /// Starts the writer.
    pub(crate) fn start(
        tasks: &mut CriticalTasks,
        config: &Config,
        store: &Store,
        registry: Arc<Registry>,
        wake: &Wake,
        dispatch: &Arc<Dispatch>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let queue =
            Arc::new(Queue::new(Size { items: config.limits.gathered_jobs, bytes: config.limits.gathered_bytes }));
        let backlogs = Arc::new(Backlogs::new(store.clone(), dispatch.clone(), config.database_timeout));
        let (store, wake, dispatch) = (store.clone(), wake.clone(), dispatch.clone());
        let breaker = Arc::new(BatchBreaker::new(config.database_timeout));
        let writer = Writer { store, wake, dispatch, metrics: metrics.clone(), breaker };
        let locked = Size {
            items: config.limits.gathered_jobs / LOCKED_SHARE,
            bytes: config.limits.gathered_bytes / LOCKED_SHARE,
        };
        let lane = side_lane::start(tasks, "locked enqueues", Locked::new(&writer), locked);
        // There is only one writer, so that the requests of a producer are stored in order.
        tasks.spawn("intake", write_all(writer, queue.clone(), Closer(lane)));
        Self { queue, registry, backlogs, metrics, lock_wait: config.database_timeout }
    }

    /// Queues the jobs atomically and in order. Applies backpressure while the queue is full. `by` is the principal,
    /// empty when authentication is off. If another transaction locks a needed resource, the jobs wait until the
    /// caller's deadline, but at most for the database timeout.
    pub async fn enqueue(
        &self,
        jobs: Vec<NewJob>,
        request: Option<RequestKey>,
        deadline: Option<Instant>,
        by: &str,
    ) -> Result<Enqueuing, Error> {
        let begun = Instant::now();
        // The SQL functions of a closed store refuse the jobs as well. This check keeps such jobs out of the queue.
        if let Some(closed) = self.registry.closed() {
            return Err(Error::StoreClosed(closed.refusal()));
        }
        let (jobs, bounded) = resolve(&self.registry, jobs, LockWait::Long, by).await?;
        let admission = if bounded.is_empty() { None } else { Some(self.admit(bounded).await?) };
        let weight = queue::weight(&jobs);
        let room = self.queue.room(jobs.len(), weight).await?;
        let (reply, answer) = oneshot::channel();
        let locked = deadline.map(|deadline| (locked::answer_by(deadline), LockReason::default()));
        let lock_deadline =
            LockDeadline::new(begun + self.lock_wait, locked.as_ref().map(|(_, reason)| reason.clone()));
        self.queue.push(Pending { jobs, request, weight, _room: room, admission, lock_deadline, reply })?;
        Ok(Enqueuing { begun, locked, answer, metrics: self.metrics.clone() })
    }

    /// Reserves room in the bounded backlogs.
    async fn admit(&self, bounded: Vec<Bounded>) -> Result<Admitted, Error> {
        self.backlogs.admit(bounded).await.inspect_err(|error| {
            if matches!(error, Error::Exhausted { .. }) {
                self.metrics.backlog_refusals.inc();
            }
        })
    }

    /// Closes the intake. Queued requests are still written.
    pub fn close(&self) {
        self.queue.close();
    }
}

/// Applies the settings of their task types to the jobs, and counts jobs of task types with a bounded backlog. New task
/// types are created for the principal `by`. With `LockWait::Short`, fails with `Locked` if another transaction is
/// creating a task type.
pub(crate) async fn resolve(
    registry: &Registry,
    jobs: Vec<NewJob>,
    lock_wait: LockWait,
    by: &str,
) -> Result<(Vec<Resolved>, Vec<Bounded>), Error> {
    // Each run of equal names is resolved once. Most requests have only one task type.
    let mut names: Vec<TaskTypeName> = Vec::new();
    for job in &jobs {
        if names.last() != Some(&job.task_type) {
            names.push(job.task_type.clone());
        }
    }
    let ids = resolve_names(registry, &names, (lock_wait, by)).await?;
    let fallbacks: Vec<TaskTypeName> = jobs.iter().filter_map(|job| job.fallback.clone()).collect();
    let mut fallbacks = resolve_names(registry, &fallbacks, (lock_wait, by)).await?.into_iter();
    let all = registry.settings();
    let settings: Vec<Option<&TypeSettings>> = ids.iter().map(|id| all.get(id)).collect();
    let default_attempts = registry.default_attempts();
    let mut bounded = Vec::new();
    let mut run = 0;
    let mut resolved = Vec::with_capacity(jobs.len());
    for (i, mut job) in jobs.into_iter().enumerate() {
        if job.fallback.is_some() {
            job.options_mut().fallback = fallbacks.next();
        }
        if job.task_type != names[run] {
            run += 1;
        }
        let job = match settings[run] {
            Some(settings) => {
                Bounded::count(&mut bounded, ids[run], &job.task_type, settings);
                with_settings(job, ids[run], settings, default_attempts)
                    .map_err(|error| error.within(&format!("jobs[{i}]")))?
            }
            None => Resolved {
                type_id: ids[run],
                max_attempts: job.max_attempts.unwrap_or(default_attempts),
                rank_base: rank_base(job.priority, PRIORITY_STEP),
                out_of_line: job.payload.len() > OUT_OF_LINE_BYTES,
                job,
            },
        };
        resolved.push(job);
    }
    for Resolved { job, .. } in resolved.iter_mut().filter(|resolved| !resolved.job.next_stages.is_empty()) {
        job.options_mut().next_stages = resolve_names(registry, &job.next_stages, (lock_wait, by)).await?;
    }
    Ok((resolved, bounded))
}

async fn resolve_names(
    registry: &Registry,
    names: &[TaskTypeName],
    (lock_wait, by): (LockWait, &str),
) -> Result<Vec<TypeId>, StoreError> {
    match lock_wait {
        LockWait::Short => registry.resolve_now(names, by).await,
        LockWait::Long => registry.resolve(names, by).await,
    }
}

/// Applies the settings of the task type where the job has no values.
fn with_settings(
    mut job: NewJob,
    type_id: TypeId,
    settings: &TypeSettings,
    default_attempts: i16,
) -> Result<Resolved, Error> {
    let bytes = job.payload.len();
    if let Some(most) = settings.max_payload_bytes.filter(|&most| bytes > most as usize) {
        let problem = format!("has {bytes} bytes; {} takes at most {most} (its max_payload_bytes)", job.task_type);
        return Err(Error::invalid("payload", problem));
    }
    job.timeout = job.timeout.or(settings.timeout);
    if let Some(step) = settings.priority_step_us.filter(|&step| job.priority != 0 && step != PRIORITY_STEP) {
        job.options_mut().priority_step_us = Some(step);
    }
    let history = job.options.as_ref().and_then(|options| options.history).or(settings.history);
    Ok(Resolved {
        type_id,
        max_attempts: job.max_attempts.or(settings.max_attempts).unwrap_or(default_attempts),
        rank_base: rank_base(job.priority, settings.step_us()),
        // A separate row for the payload saves WAL only if the job row is written a second time, to the history.
        out_of_line: bytes > OUT_OF_LINE_BYTES && history != Some(HistoryMode::None),
        job,
    })
}

/// Writes queued requests in batches until the queue is closed and empty.
async fn write_all(writer: Writer, queue: Arc<Queue>, lane: Closer<Pending>) {
    while let Some(batch) = queue.take(BATCH).await {
        writer.metrics.enqueue_batch.observe(batch.iter().map(|request| request.jobs.len()).sum::<usize>() as f64);
        writer.breaker.begin();
        write_batch(&writer, &lane.0, locked::divert(&lane.0, batch)).await;
        if writer.breaker.error().is_some() {
            // Fails the queued requests, too, if the circuit breaker is open: they have waited for Postgres during this
            // batch, and would wait as long again.
            writer.breaker.reply_if_open(queue.take_all());
        }
    }
}

/// Writes a batch with one statement per kind of request. A request belongs to one kind, so that it stays atomic.
async fn write_batch(writer: &Writer, lane: &SideLane<Pending>, batch: Vec<Pending>) {
    let (plain, mut keyed): (Vec<_>, Vec<_>) = batch.into_iter().partition(Pending::is_plain);
    let plain = writer.breaker.reply_if_open(direct::write_some(writer, plain).await);
    if !plain.is_empty() {
        keyed.extend(plain::write(writer, lane, plain).await);
    }
    let (coordinated, keyed): (Vec<_>, Vec<_>) =
        writer.breaker.reply_if_open(keyed).into_iter().partition(Pending::is_coordinated);
    if !keyed.is_empty() {
        rounds::write(writer, lane, Kind::Keyed, keyed).await;
    }
    let coordinated = writer.breaker.reply_if_open(coordinated);
    if !coordinated.is_empty() {
        rounds::write(writer, lane, Kind::Coordinated, coordinated).await;
    }
}

/// Answers the callers with the ids of their jobs, which are all new.
fn answer(requests: Vec<Pending>, ids: impl IntoIterator<Item = i64>) {
    let mut ids = ids.into_iter();
    for request in requests {
        let jobs = ids.by_ref().take(request.jobs.len()).map(Enqueued::new).collect();
        request.reply(Ok(jobs));
    }
}

/// Marks the jobs as stored and waiting for workers, so that they count in the backlogs.
fn wait_for_workers(requests: &mut [Pending]) {
    requests.iter_mut().filter_map(|request| request.admission.as_mut()).for_each(Admitted::wait_for_workers);
}

/// Returns the request keys of a batch.
fn request_keys(requests: &[Pending]) -> RequestKeys<'_> {
    let mut keys = RequestKeys::default();
    let mut before = 0;
    for request in requests {
        if let Some(key) = &request.request {
            keys.push(&key.key, &key.body_hash, before, request.jobs.len());
        }
        before += request.jobs.len();
    }
    keys
}

/// Reaction to a failed statement.
enum Remedy {
    /// Run the statement again: it was rolled back after a conflict that may not recur.
    Repeat,
    /// Write the requests of the statement one by one, because one of them causes the error or conflicts each time.
    Split,
    /// Move the requests of the statement to the side lane, where they wait for a lock.
    SideLane,
    /// Answer the callers with the error.
    Reply(Error),
}

fn remedy(error: StoreError, tries: u32, requests: usize, writer: &Writer) -> Remedy {
    writer.metrics.store_errors.inc();
    writer.breaker.failed(&error);
    match error {
        StoreError::Conflict(_) if tries < CONFLICT_TRIES => Remedy::Repeat,
        StoreError::Locked(_) => Remedy::SideLane,
        StoreError::Conflict(_) if requests > 1 => Remedy::Split,
        error if requests > 1 && error.may_spare_other_jobs() => Remedy::Split,
        other => Remedy::Reply(other.into()),
    }
}
