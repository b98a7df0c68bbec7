//! Maintenance task: enqueues a job for each planned time of a schedule, once across all brokers. A broker skips
//! schedules that it cannot plan, for example because of an unknown time zone; other brokers fire them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use howdah_core::{
    error::Error,
    job::{
        EnqueueOutcome, NewJob,
        schedule::{Drift, Plan, Schedule},
    },
};
use parking_lot::Mutex;

use super::{Context, until_done};
use crate::{
    intake::resolve,
    store::{KeyedJob, LockWait, RequestColumns, ScheduleTransaction, StoreError, Wakeups},
};

/// Maximum number of schedules fired in one transaction.
pub const SCHEDULES: i32 = 32;
/// Maximum number of jobs enqueued by schedules in one transaction.
pub const JOBS: usize = 500;
/// Maximum size in bytes of the jobs that schedules enqueue in one transaction, after the first job.
pub const BYTES: usize = 8 << 20;

/// Maximum time for firing due schedules before schedules that wait for the end of a job are checked.
const MAX_FIRING: Duration = Duration::from_secs(1);

/// Time for which this broker skips a schedule that it cannot plan.
const SKIPPED_FOR: Duration = Duration::from_secs(60);

/// Schedules that this broker cannot plan, for example because their time zone is unknown. Each is skipped until the given
/// time, or until it is updated.
#[derive(Default)]
pub(crate) struct SkippedSchedules(Mutex<HashMap<String, (SystemTime, Instant)>>);

impl SkippedSchedules {
    fn skip(&self, schedule: &Schedule) {
        let until = Instant::now() + SKIPPED_FOR;
        self.0.lock().insert(schedule.spec.name.clone(), (schedule.updated, until));
    }

    /// Names of the schedules, with the times of their last updates.
    fn all(&self) -> (Vec<String>, Vec<SystemTime>) {
        let mut skipped = self.0.lock();
        skipped.retain(|_, (_, until)| *until > Instant::now());
        skipped.iter().map(|(name, (updated, _))| (name.clone(), *updated)).unzip()
    }
}

/// Selection of the schedules to fire.
#[derive(Clone, Copy)]
enum Selection<'a> {
    /// At most this number of due schedules, in the order of their planned times.
    Due(i32),
    /// The schedules with these names, if they still wait for the end of their jobs.
    Watching(&'a [&'a str]),
}

impl Selection<'_> {
    async fn lock(
        self,
        transaction: &mut ScheduleTransaction<'_>,
        skipped: &SkippedSchedules,
    ) -> Result<Vec<(Schedule, i64)>, StoreError> {
        let (skipped, updated) = skipped.all();
        match self {
            Self::Due(at_most) => transaction.lock_due(at_most, (&skipped, &updated)).await,
            Self::Watching(names) => transaction.lock_watching(names, SCHEDULES, (&skipped, &updated)).await,
        }
    }
}

pub(super) async fn run(context: Arc<Context>) {
    loop {
        context.wake.schedule_alarm().rung().await;
        until_done(&context, "firing schedules", || run_once(&context)).await;
    }
}

/// Fires schedules whose planned time has come, and schedules that waited for the end of their jobs.
pub(super) async fn run_once(context: &Context) -> Result<(), StoreError> {
    if context.registry.closed().is_some() {
        // While the store is closed, no schedule fires. When it is open again, the planned times of that period count
        // as missed.
        return Ok(());
    }
    let (mut seen, mut looked) = (false, Instant::now());
    while fire_due(context).await? {
        seen = true;
        // Checks the schedules that wait for a job from time to time, even if there are always due schedules.
        if looked.elapsed() >= MAX_FIRING {
            fire_finished(context).await?;
            looked = Instant::now();
        }
    }
    seen |= fire_finished(context).await?;
    if seen {
        // The requested sweep finds schedules that wait for the end of the new jobs.
        context.sweep_now.notify_one();
    }
    context.set_alarms().await
}

/// Fires a batch of due schedules. Returns whether any schedule was due.
async fn fire_due(context: &Context) -> Result<bool, StoreError> {
    match fire(context, Selection::Due(SCHEDULES)).await {
        // One schedule made the whole batch fail. Fires schedules one at a time, so that only that schedule is
        // postponed.
        Err(error) if fails_alone(&error) => fire_one(context, Selection::Due(1)).await,
        result => result,
    }
}

/// Fires one schedule, or postpones it if its job is refused. Returns whether the selection contained a schedule.
async fn fire_one(context: &Context, selection: Selection<'_>) -> Result<bool, StoreError> {
    match fire(context, selection).await {
        Err(error) if fails_alone(&error) => put_off(context, selection, &error).await.map(|()| true),
        result => result,
    }
}

/// Returns whether the error concerns a single schedule, so that other schedules can fire.
fn fails_alone(error: &StoreError) -> bool {
    error.may_spare_other_jobs() || matches!(error, StoreError::Locked(_))
}

async fn put_off(context: &Context, selection: Selection<'_>, error: &StoreError) -> Result<(), StoreError> {
    let mut transaction = context.store.schedule_transaction().await?;
    if let Some((mut schedule, now)) = selection.lock(&mut transaction, &context.skipped_schedules).await?.pop() {
        if let StoreError::Locked(_) = error {
            tracing::warn!(schedule = schedule.spec.name, %error, "a schedule cannot fire yet; trying again");
            schedule.has_met_lock(now);
        } else {
            tracing::error!(schedule = schedule.spec.name, %error, "a schedule's job was refused; trying again in a minute");
            schedule.has_failed(&named(context, &error.public_text()), now);
        }
        transaction.save(&schedule).await?;
    }
    transaction.commit().await
}

/// Adds this broker's name to a problem, because other brokers may not have the problem.
fn named(context: &Context, problem: &str) -> String {
    format!("broker {:?}: {problem}", context.config.name)
}

/// Fires schedules whose jobs have ended, if they waited for that. Returns whether any fired.
async fn fire_finished(context: &Context) -> Result<bool, StoreError> {
    let watched = context.store.watched_schedules().await?;
    if watched.is_empty() {
        return Ok(false);
    }
    let ids: Vec<i64> = watched.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    let unfinished = context.store.unfinished(&ids).await?;
    let over = |(name, ids): &(String, Vec<i64>)| (!ids.iter().any(|id| unfinished.contains(id))).then(|| name.clone());
    let over: Vec<String> = watched.iter().filter_map(over).collect();
    for names in over.chunks(SCHEDULES as usize) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match fire(context, Selection::Watching(&names)).await {
            Err(error) if fails_alone(&error) => {
                for name in names {
                    fire_one(context, Selection::Watching(&[name])).await?;
                }
            }
            result => drop(result?),
        }
    }
    Ok(!over.is_empty())
}

/// In one transaction, locks the schedules, stores their jobs, and advances their planned times. Returns whether any
/// schedule was selected.
async fn fire(context: &Context, selection: Selection<'_>) -> Result<bool, StoreError> {
    let mut transaction = context.store.schedule_transaction().await?;
    let fired = match fire_held(context, &mut transaction, selection).await {
        Ok(fired) => fired,
        Err(error) => {
            transaction.roll_back().await;
            return Err(error);
        }
    };
    transaction.commit().await?;
    let Some(fired) = fired else { return Ok(false) };
    context.metrics.enqueued.inc_by(fired.jobs);
    context.metrics.scheduled.inc_by(fired.jobs);
    context.dispatch.wakeups(&fired.woken);
    Ok(true)
}

/// Result of a firing transaction: the number of new jobs, and the wake-ups for them.
#[derive(Default)]
struct Fired {
    jobs: u64,
    woken: Wakeups,
}

fn full(job: &crate::intake::Resolved) -> KeyedJob<'_> {
    KeyedJob { plain: job.as_plain(), request_no: 0 }
}

async fn fire_held(
    context: &Context,
    transaction: &mut ScheduleTransaction<'_>,
    selection: Selection<'_>,
) -> Result<Option<Fired>, StoreError> {
    let held = selection.lock(transaction, &context.skipped_schedules).await?;
    if held.is_empty() {
        return Ok(None);
    }
    let jobs_before = Before::load(transaction, &held).await?;
    let mut batch =
        Batch { context, before: &jobs_before, jobs: Vec::new(), bytes: 0, advanced: Vec::new(), skipped: 0 };
    for (schedule, now) in held {
        if !batch.jobs.is_empty() && (batch.jobs.len() >= JOBS || batch.bytes >= BYTES) {
            // The remaining schedules are still due. The next transaction fires them.
            break;
        }
        batch.add(schedule, now);
    }
    let (jobs, advanced) = (batch.jobs, batch.advanced);
    // Schedules ignore `max_backlog`, which applies only to producers.
    let (jobs, _) = resolve(&context.registry, jobs, LockWait::Short, "").await.map_err(|error| match error {
        Error::Invalid { .. } => StoreError::Refused(error.to_string().into()),
        Error::Locked(problem) => StoreError::Locked(problem.into()),
        other => StoreError::RolledBack(other.to_string().into()),
    })?;
    let mut fired = Fired::default();
    let mut stored = Vec::new();
    if !jobs.is_empty() {
        let columns: Vec<KeyedJob<'_>> = jobs.iter().map(full).collect();
        let answer = transaction.enqueue(&columns, &RequestColumns::default()).await?;
        fired.jobs = answer.jobs.iter().flatten().filter(|job| job.is_new()).count() as u64;
        fired.woken = answer.wakeups;
        stored = answer.jobs;
    }
    let mut stored = stored.into_iter();
    for Advanced { mut schedule, planned, failed, now } in advanced {
        let mut made = Vec::new();
        for job in stored.by_ref().take(planned.len()) {
            match job {
                // If the new job replaced an older one with the same key, `job.id` is the older job's id, which the
                // replacement keeps. It counts as fired.
                Some(job) if !matches!(job.outcome, EnqueueOutcome::Kept | EnqueueOutcome::Stale) => made.push(job.id),
                _ => schedule.state.skipped += 1,
            }
        }
        if !failed {
            schedule.has_fired(&made, planned.last().copied(), now, |id| jobs_before.unfinished.contains(&id));
        }
        transaction.save(&schedule).await?;
    }
    Ok(Some(fired))
}

/// State of the schedules' earlier jobs, which decides whether a schedule fires.
struct Before {
    unfinished: HashSet<i64>,
    finish_times: HashMap<i64, i64>,
}

impl Before {
    async fn load(transaction: &mut ScheduleTransaction<'_>, held: &[(Schedule, i64)]) -> Result<Self, StoreError> {
        let ids = |wanted: &dyn Fn(&Schedule) -> bool| -> Vec<i64> {
            let wanted = held.iter().map(|(schedule, _)| schedule).filter(|schedule| wanted(schedule));
            wanted.flat_map(|schedule| schedule.state.job_ids.iter().copied()).collect()
        };
        let minded = ids(&Schedule::minds_its_jobs);
        let ended = ids(&|schedule| schedule.spec.drift == Drift::End && schedule.state.watching);
        let unfinished = if minded.is_empty() { HashSet::new() } else { transaction.unfinished(&minded).await? };
        let finish_times = if ended.is_empty() { HashMap::new() } else { transaction.finish_times(&ended).await? };
        Ok(Self { unfinished, finish_times })
    }

    fn busy(&self, schedule: &Schedule) -> bool {
        schedule.minds_its_jobs() && schedule.state.job_ids.iter().any(|id| self.unfinished.contains(id))
    }

    fn last_end(&self, schedule: &Schedule) -> Option<i64> {
        schedule.state.job_ids.iter().filter_map(|id| self.finish_times.get(id).copied()).max()
    }
}

/// A schedule after firing, with the planned times of its new jobs.
struct Advanced {
    schedule: Schedule,
    planned: Vec<i64>,
    /// Whether the schedule could not be evaluated.
    failed: bool,
    now: i64,
}

struct Batch<'a> {
    context: &'a Context,
    before: &'a Before,
    jobs: Vec<NewJob>,
    bytes: usize,
    advanced: Vec<Advanced>,
    /// Number of schedules that this broker cannot plan.
    skipped: usize,
}

impl Batch<'_> {
    /// Evaluates a schedule and adds its due jobs to the batch. An error is stored in the schedule.
    fn add(&mut self, mut schedule: Schedule, now: i64) {
        let size = schedule.spec.template.payload.len() + schedule.spec.template.message.len() + 1;
        let room = (JOBS - self.jobs.len().min(JOBS)).min((BYTES - self.bytes.min(BYTES)) / size).max(1);
        let plan = match schedule.spec.plan.parse() {
            Ok(plan) => plan,
            Err((field, problem)) => return self.skip(schedule, &format!("{field} {problem}"), now),
        };
        schedule.follow_zone(&plan, now);
        let planned = schedule.plan_defined(&plan, now).map_err(|(field, problem)| format!("{field} {problem}"));
        match planned.and_then(|()| self.decide(&schedule, &plan, now, room)) {
            Ok((jobs, planned, state)) => {
                self.bytes += jobs.len() * size;
                self.jobs.extend(jobs);
                schedule.state = state;
                self.advanced.push(Advanced { schedule, planned, failed: false, now });
            }
            Err(problem) => {
                tracing::warn!(
                    schedule = schedule.spec.name,
                    problem,
                    "a schedule cannot fire; trying again in a minute"
                );
                schedule.has_failed(&named(self.context, &problem), now);
                self.advanced.push(Advanced { schedule, planned: Vec::new(), failed: true, now });
            }
        }
    }

    /// Skips a schedule that this broker cannot plan. The schedule stays due, so that other brokers can fire it.
    fn skip(&mut self, mut schedule: Schedule, problem: &str, now: i64) {
        if self.skipped == 0 {
            let schedule = &schedule.spec.name;
            tracing::warn!(
                schedule,
                problem,
                "this broker cannot plan a schedule, and leaves it to other brokers for a minute"
            );
        }
        self.skipped += 1;
        self.context.skipped_schedules.skip(&schedule);
        schedule.state.last_error = Some(named(self.context, problem));
        self.advanced.push(Advanced { schedule, planned: Vec::new(), failed: true, now });
    }

    fn decide(
        &self,
        schedule: &Schedule,
        plan: &Plan,
        now: i64,
        room: usize,
    ) -> Result<(Vec<NewJob>, Vec<i64>, howdah_core::job::schedule::ScheduleState), String> {
        let spec = &schedule.spec;
        let (busy, last_end) = (self.before.busy(schedule), self.before.last_end(schedule));
        let firing = spec.fire(plan, &schedule.state, now, busy, last_end, room);
        let limits = self.context.registry.cluster();
        let job = |time: &i64| (self.context.check_template)(&spec.template, schedule.headers(*time), &limits);
        let jobs: Result<Vec<NewJob>, _> = firing.planned.iter().map(job).collect();
        Ok((jobs.map_err(|error| error.to_string())?, firing.planned, firing.state))
    }
}
