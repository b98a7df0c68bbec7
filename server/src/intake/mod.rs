//! Step 1, enqueue: gather requests, write them in batches, answer after the commit.
//!
//! Natural batching (DESIGN: group commit without a timer): when a writer is free it takes everything
//! that has gathered. Idle, that is one request, at once; busy, batches grow by themselves.

mod away;
mod backlog;
mod direct;
mod keyed;
mod locked;
mod plain;
mod queue;
mod rounds;
mod coordinated;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::{
    batch::{Room, Size},
    config::Config,
    critical::CriticalTasks,
    dispatch::Dispatch,
    error::Error,
    job::{Enqueued, HistoryMode, NewJob, PRIORITY_STEP, RequestKey, TaskTypeName, TypeId, TypeSettings, rank_base},
    metrics::Metrics,
    registry::Registry,
    side_lane::{self, Closer, SideLane},
    store::{Patience, PlainJob, RequestKeys, Store, StoreError},
    wake::Wake,
};
use away::Away;
use backlog::{Admitted, Backlogs, Bounded};
use locked::{Locked, Told, Until};
pub(crate) use queue::{JOB_BYTES, Queue};
use rounds::Kind;

/// Jobs in a statement at most, unless one request has more; and bytes: 8 MiB of payloads and what the jobs take besides.
const BATCH: Size = Size { items: BATCH_JOBS, bytes: (8 << 20) + BATCH_JOBS * queue::JOB_BYTES };
const BATCH_JOBS: usize = 4_000;
/// A larger payload is written once, out of line of the job that moves from table to table. At 1 KiB that
/// takes 1.8 bytes of WAL a byte instead of 2.5; the less there is to save, the more the row and the index
/// entry weigh that it takes.
const OUT_OF_LINE_BYTES: usize = 1_024;
/// The part of what may gather that may wait for locks of other transactions.
const LOCKED_SHARE: usize = 4;
/// A batch that lost against another transaction is tried again so often.
const CONFLICT_TRIES: u32 = 5;

/// A request that waits for its statement.
pub(crate) struct Pending {
    jobs: Vec<Resolved>,
    request: Option<RequestKey>,
    weight: usize,
    /// Held until the request is answered.
    _room: Room,
    /// Room in the backlogs of its types, where these are bounded.
    admitted: Option<Admitted>,
    /// For how long it may wait for another transaction's lock.
    until: Until,
    reply: oneshot::Sender<Result<Vec<Enqueued>, Error>>,
}

/// A job with what its type says.
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

    /// Tells the caller, who may have gone away, and does not mind then.
    fn tell(self, answer: Result<Vec<Enqueued>, Error>) {
        // First: the caller's next request must not find its own jobs still on their way.
        drop(self.admitted);
        let _ = self.reply.send(answer);
    }
}

/// A request that has its place among those to be stored; it is stored even if this is dropped, unless it is locked.
pub struct Placed {
    begun: Instant,
    /// When its caller is told that it is locked, and by whom.
    locked: Option<(Instant, Told)>,
    answer: oneshot::Receiver<Result<Vec<Enqueued>, Error>>,
    metrics: Arc<Metrics>,
}

impl Placed {
    /// Waits for the commit.
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

/// The way in.
pub struct Intake {
    queue: Arc<Queue>,
    registry: Arc<Registry>,
    backlogs: Arc<Backlogs>,
    metrics: Arc<Metrics>,
    patience: Duration,
}

/// What the writer needs.
#[derive(Clone)]
struct Writer {
    store: Store,
    wake: Wake,
    dispatch: Arc<Dispatch>,
    metrics: Arc<Metrics>,
    away: Arc<Away>,
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
        let away = Arc::new(Away::new(config.database_timeout));
        let writer = Writer { store, wake, dispatch, metrics: metrics.clone(), away };
        let locked = Size {
            items: config.limits.gathered_jobs / LOCKED_SHARE,
            bytes: config.limits.gathered_bytes / LOCKED_SHARE,
        };
        let lane = side_lane::start(tasks, "locked enqueues", Locked::new(&writer), locked);
        // One writer: what a producer sends in order is stored in order.
        tasks.spawn("intake", write_all(writer, queue.clone(), Closer(lane)));
        Self { queue, registry, backlogs, metrics, patience: config.database_timeout }
    }

    /// Takes jobs of this principal (empty: nobody in particular) to be stored, all or none, after those that it took before; waits while too much has gathered. If
    /// another transaction holds what they need, they wait for it until the caller's deadline, or as long as for
    /// Postgres.
    pub async fn enqueue(
        &self,
        jobs: Vec<NewJob>,
        request: Option<RequestKey>,
        deadline: Option<Instant>,
        by: &str,
    ) -> Result<Placed, Error> {
        let begun = Instant::now();
        // The statements refuse, too; here nothing gathers first.
        if let Some(closed) = self.registry.closed() {
            return Err(Error::StoreClosed(closed.refusal()));
        }
        let (jobs, bounded) = resolve(&self.registry, jobs, Patience::Long, by).await?;
        let admitted = if bounded.is_empty() { None } else { Some(self.admit(bounded).await?) };
        let weight = queue::weight(&jobs);
        let room = self.queue.room(jobs.len(), weight).await?;
        let (reply, answer) = oneshot::channel();
        let locked = deadline.map(|deadline| (locked::answer_by(deadline), Told::default()));
        let until = Until::new(begun + self.patience, locked.as_ref().map(|(_, told)| told.clone()));
        self.queue.push(Pending { jobs, request, weight, _room: room, admitted, until, reply })?;
        Ok(Placed { begun, locked, answer, metrics: self.metrics.clone() })
    }

    /// Room in the backlogs of the types that bound theirs.
    async fn admit(&self, bounded: Vec<Bounded>) -> Result<Admitted, Error> {
        self.backlogs.admit(bounded).await.inspect_err(|error| {
            if matches!(error, Error::Exhausted { .. }) {
                self.metrics.backlog_refusals.inc();
            }
        })
    }

    /// Takes no more; what has gathered is still written.
    pub fn close(&self) {
        self.queue.close();
    }
}

/// What their types say of the jobs, and how many there are of types whose backlog is bounded; types that are
/// new are created for this principal. With short patience, one that another transaction makes is an error.
pub(crate) async fn resolve(
    registry: &Registry,
    jobs: Vec<NewJob>,
    patience: Patience,
    by: &str,
) -> Result<(Vec<Resolved>, Vec<Bounded>), Error> {
    // Most requests have one type: ask for each run of equal names once.
    let mut names: Vec<TaskTypeName> = Vec::new();
    for job in &jobs {
        if names.last() != Some(&job.task_type) {
            names.push(job.task_type.clone());
        }
    }
    let ids = resolve_names(registry, &names, (patience, by)).await?;
    let fallbacks: Vec<TaskTypeName> = jobs.iter().filter_map(|job| job.fallback.clone()).collect();
    let mut fallbacks = resolve_names(registry, &fallbacks, (patience, by)).await?.into_iter();
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
        job.options_mut().next_stages = resolve_names(registry, &job.next_stages, (patience, by)).await?;
    }
    Ok((resolved, bounded))
}

async fn resolve_names(
    registry: &Registry,
    names: &[TaskTypeName],
    (patience, by): (Patience, &str),
) -> Result<Vec<TypeId>, StoreError> {
    match patience {
        Patience::Short => registry.resolve_now(names, by).await,
        Patience::Long => registry.resolve(names, by).await,
    }
}

/// A job with what its type says where it says nothing itself.
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
    Ok(Resolved {
        type_id,
        max_attempts: job.max_attempts.or(settings.max_attempts).unwrap_or(default_attempts),
        rank_base: rank_base(job.priority, settings.step_us()),
        // Worth it where the job is written again, to history.
        out_of_line: bytes > OUT_OF_LINE_BYTES && settings.history != Some(HistoryMode::None),
        job,
    })
}

/// One writer's loop: take what has gathered, write it, until the queue is closed and empty.
async fn write_all(writer: Writer, queue: Arc<Queue>, lane: Closer<Pending>) {
    while let Some(batch) = queue.take(BATCH).await {
        writer.metrics.enqueue_batch.observe(batch.iter().map(|request| request.jobs.len()).sum::<usize>() as f64);
        writer.away.begin();
        write_batch(&writer, &lane.0, locked::divert(&lane.0, batch)).await;
        if writer.away.found().is_some() {
            // What came meanwhile has waited for it too, and would wait as long again.
            writer.away.tell(queue.take_all());
        }
    }
}

/// A request is wholly of one kind, so that it stays atomic; the kinds are statements of their own.
async fn write_batch(writer: &Writer, lane: &SideLane<Pending>, batch: Vec<Pending>) {
    let (plain, mut keyed): (Vec<_>, Vec<_>) = batch.into_iter().partition(Pending::is_plain);
    let plain = writer.away.tell(direct::write_some(writer, plain).await);
    if !plain.is_empty() {
        keyed.extend(plain::write(writer, lane, plain).await);
    }
    let (coordinated, keyed): (Vec<_>, Vec<_>) = writer.away.tell(keyed).into_iter().partition(Pending::is_coordinated);
    if !keyed.is_empty() {
        rounds::write(writer, lane, Kind::Keyed, keyed).await;
    }
    let coordinated = writer.away.tell(coordinated);
    if !coordinated.is_empty() {
        rounds::write(writer, lane, Kind::Coordinated, coordinated).await;
    }
}

/// Tells the callers the ids of their jobs, which are all new.
fn answer(requests: Vec<Pending>, ids: impl IntoIterator<Item = i64>) {
    let mut ids = ids.into_iter();
    for request in requests {
        let jobs = ids.by_ref().take(request.jobs.len()).map(Enqueued::new).collect();
        request.tell(Ok(jobs));
    }
}

/// They are stored, and no worker has them yet: they are part of their types' backlogs.
fn wait_for_workers(requests: &mut [Pending]) {
    requests.iter_mut().filter_map(|request| request.admitted.as_mut()).for_each(Admitted::wait_for_workers);
}

/// The request keys of a batch.
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

/// What to do about a statement that failed.
enum Remedy {
    /// Run it again: it was rolled back, and lost only by chance.
    Repeat,
    /// Write its requests one by one: one of them is at fault, or loses each time.
    Split,
    /// Let them wait for a lock, aside from the others.
    Aside,
    /// Tell the callers.
    Tell(Error),
}

fn remedy(error: StoreError, tries: u32, requests: usize, writer: &Writer) -> Remedy {
    writer.metrics.store_errors.inc();
    writer.away.failed(&error);
    match error {
        StoreError::Conflict(_) if tries < CONFLICT_TRIES => Remedy::Repeat,
        StoreError::Locked(_) => Remedy::Aside,
        StoreError::Conflict(_) | StoreError::Refused(_) | StoreError::Job { .. } if requests > 1 => Remedy::Split,
        other => Remedy::Tell(other.into()),
    }
}
