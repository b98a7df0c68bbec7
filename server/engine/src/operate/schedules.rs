//! Schedules: create, update, get, list, delete, pause, resume and run.

use std::time::Duration;

use howdah_core::{
    error::Error,
    job::{
        EnqueueOutcome, Enqueued, RequestKey,
        schedule::{MAX_SCHEDULES, MOST_OF_PRINCIPAL, Schedule, ScheduleSpec},
    },
};
use sha2::{Digest as _, Sha256};

use super::Operator;
use crate::{
    intake::{repeat, request_forgotten, resolve},
    store::{
        Actor, KeyedJob, Lane, LockWait, RequestColumns, ScheduleCount, SchedulePage, ScheduleTransaction, Wakeups,
    },
};

/// Approximate maximum size of a page of schedules, in bytes: generated clients accept messages of 4 MiB.
const LIST_BYTES: i64 = 3 << 20;
/// Maximum number of tries to create a schedule while other calls create and delete it.
const CREATE_LOOKS: usize = 5;

/// Permission check of a change. It runs while the schedule is locked, so that it sees the current template.
type Check<'a> = &'a (dyn Fn(&Schedule) -> Result<(), Error> + Send + Sync);

impl Operator {
    /// Creates a schedule. If a schedule with the same definition exists, returns that one.
    pub async fn create_schedule(&self, spec: ScheduleSpec, paused: bool, by: &Actor) -> Result<Schedule, Error> {
        let plan = spec.plan.parse().map_err(wrong)?;
        for _ in 0..CREATE_LOOKS {
            if let Some(existing) = self.context.store.get_schedule(&spec.name).await? {
                if existing.spec == spec {
                    return Ok(existing);
                }
                return Err(taken_schedule(&spec.name));
            }
            if let Some(closed) = self.context.registry.closed() {
                return Err(Error::StoreClosed(closed.refusal()));
            }
            let count = self.context.store.count_schedules(by.name()).await?;
            refuse_too_many(&count, by.name())?;
            let mut state = spec.planned_from(&plan, count.now).map_err(wrong)?;
            state.paused = paused;
            let clock = std::time::SystemTime::UNIX_EPOCH;
            let schedule = Schedule { spec: spec.clone(), state, created: clock, updated: clock };
            if let Some(created) = self.context.store.create_schedule(&schedule, by).await? {
                self.context.wake.schedule_in(Duration::ZERO);
                return Ok(created);
            }
        }
        Err(Error::Unavailable("other calls create and delete this schedule at the same time; try again".into()))
    }

    /// Replaces a schedule's definition, if the check permits it. Creates the schedule if it does not exist and `allow_missing` is
    /// set.
    pub async fn update_schedule(
        &self,
        spec: ScheduleSpec,
        paused: bool,
        allow_missing: bool,
        check: Check<'_>,
        by: &Actor,
    ) -> Result<Schedule, Error> {
        let store = self.context.store.side_lane(Lane::Operate, LockWait::Long);
        let (mut transaction, found) = store.lock_schedule(&spec.name).await?;
        let Some((mut schedule, now)) = found else {
            transaction.roll_back().await;
            return if allow_missing {
                self.create_schedule(spec, paused, by).await
            } else {
                Err(no_schedule(&spec.name))
            };
        };
        if let Err(error) = check(&schedule).and_then(|()| schedule.redefine(spec, now).map_err(wrong)) {
            transaction.roll_back().await;
            return Err(error);
        }
        let schedule = transaction.redefine(&schedule).await?;
        transaction.record(&schedule, by).await?;
        transaction.commit().await?;
        self.context.wake.schedule_in(Duration::ZERO);
        Ok(schedule)
    }

    /// Returns the schedule with this name.
    pub async fn get_schedule(&self, name: &str) -> Result<Schedule, Error> {
        self.context.store.get_schedule(name).await?.ok_or_else(|| no_schedule(name))
    }

    /// Returns a page of the schedules whose names come after `after`.
    pub async fn list_schedules(&self, after: &str, page_size: usize) -> Result<SchedulePage, Error> {
        Ok(self.context.store.list_schedules(after, page_size as i32, LIST_BYTES).await?)
    }

    /// Deletes a schedule whose jobs have this task type. Jobs that it has enqueued stay.
    pub async fn delete_schedule(&self, name: &str, task_type: &str, by: &Actor) -> Result<(), Error> {
        if self.context.store.delete_schedule(name, task_type, by).await? { Ok(()) } else { Err(no_schedule(name)) }
    }

    /// Pauses or resumes a schedule, if the check permits it.
    pub async fn pause_schedule(
        &self,
        name: &str,
        paused: bool,
        check: Check<'_>,
        by: &Actor,
    ) -> Result<Schedule, Error> {
        let store = self.context.store.side_lane(Lane::Operate, LockWait::Long);
        let (mut transaction, found) = store.lock_schedule(name).await?;
        let Some((mut schedule, now)) = found else {
            transaction.roll_back().await;
            return Err(no_schedule(name));
        };
        if let Err(error) = check(&schedule) {
            transaction.roll_back().await;
            return Err(error);
        }
        if paused {
            schedule.pause();
        } else if let Err((field, problem)) = schedule.resume(now) {
            transaction.roll_back().await;
            return Err(Error::Internal(format!("schedule {name:?} cannot be resumed: {field} {problem}")));
        }
        let schedule = transaction.save(&schedule).await?;
        transaction.record(&schedule, by).await?;
        transaction.commit().await?;
        self.context.wake.schedule_in(Duration::ZERO);
        Ok(schedule)
    }

    /// Enqueues a job of the schedule now, if the check permits it. A call with a repeated request key returns the job of the
    /// first call.
    pub async fn run_schedule(
        &self,
        name: &str,
        request_key: Option<String>,
        check: Check<'_>,
        by: &Actor,
    ) -> Result<Enqueued, Error> {
        let store = self.context.store.side_lane(Lane::Operate, LockWait::Long);
        let (mut transaction, found) = store.lock_schedule(name).await?;
        let Some(found) = found else {
            transaction.roll_back().await;
            return Err(no_schedule(name));
        };
        match self.run_held(&mut transaction, found, request_key, (check, by)).await {
            Ok(Run::Made { job, woken }) => {
                transaction.commit().await?;
                self.context.dispatch.wakeups(&woken);
                Ok(job)
            }
            Ok(Run::Found(job)) => {
                transaction.roll_back().await;
                Ok(job)
            }
            Err(error) => {
                transaction.roll_back().await;
                Err(error)
            }
        }
    }

    async fn run_held(
        &self,
        transaction: &mut ScheduleTransaction<'_>,
        (mut schedule, now): (Schedule, i64),
        request_key: Option<String>,
        (check, by): (Check<'_>, &Actor),
    ) -> Result<Run, Error> {
        check(&schedule)?;
        let limits = self.context.registry.cluster();
        let job = (self.context.check_template)(&schedule.spec.template, schedule.headers(now), &limits)
            .map_err(|error| Error::Precondition(format!("the schedule's template is no longer valid: {error}")))?;
        let (jobs, _) = resolve(&self.context.registry, vec![job], LockWait::Short, by.name()).await?;
        let full: Vec<KeyedJob<'_>> =
            jobs.iter().map(|job| KeyedJob { plain: job.as_plain(), request_no: 0 }).collect();
        let body_hash: [u8; 32] = Sha256::digest(["schedule\0", &schedule.spec.name].concat()).into();
        let request = request_key.map(|key| RequestKey { key, body_hash });
        let mut requests = RequestColumns::default();
        requests.push(0, request.as_ref());
        let stored = transaction.enqueue(&full, &requests).await?;
        let Some(&made) = stored.jobs.first() else {
            return Err(Error::Internal("bug: Postgres returned no id for the job, which may be stored".into()));
        };
        match (made, &request) {
            (None, Some(request)) => {
                let repeated = transaction.repeated(&[request.key.as_str()]).await?;
                let first = repeat(request, &repeated).transpose()?.and_then(|jobs| jobs.first().copied());
                Ok(Run::Found(first.ok_or_else(request_forgotten)?))
            }
            (None, None) => Err(Error::Internal("bug: a run without a request_key was answered as a duplicate".into())),
            // Another job holds the key of the template, so nothing was stored.
            (Some(job), _) if matches!(job.outcome, EnqueueOutcome::Kept | EnqueueOutcome::Stale) => {
                Ok(Run::Found(job))
            }
            (Some(job), _) => {
                // Keeps recorded jobs of earlier firings (`|_| true`): this call has not checked which have ended.
                schedule.has_fired(&[job.id], None, now, |_| true);
                transaction.save(&schedule).await?;
                transaction.record_run(&schedule, by).await?;
                Ok(Run::Made { job, woken: stored.wakeups })
            }
        }
    }
}

/// Result of running a schedule manually.
enum Run {
    /// A job that was stored or changed, and the wake-ups to send after the commit.
    Made { job: Enqueued, woken: Wakeups },
    /// An existing job; nothing was stored.
    Found(Enqueued),
}

pub fn no_schedule(name: &str) -> Error {
    Error::NotFound(format!("schedule {name:?} does not exist"))
}

/// Fails if there are too many schedules to create another one, in total or of this principal. `by` is empty if authentication
/// is off.
fn refuse_too_many(count: &ScheduleCount, by: &str) -> Result<(), Error> {
    if count.all >= MAX_SCHEDULES {
        let problem = format!("the maximum of {MAX_SCHEDULES} schedules is reached; delete unneeded ones");
        return Err(Error::TooMany(problem));
    }
    if !by.is_empty() && count.own >= MOST_OF_PRINCIPAL {
        return Err(Error::TooMany(format!(
            "{by:?} has created {MOST_OF_PRINCIPAL} schedules, which is the most for one principal; delete those that are \
             not needed"
        )));
    }
    Ok(())
}

/// Error for a name that another schedule has.
pub fn taken_schedule(name: &str) -> Error {
    let problem = "another schedule has this name; update or delete it, or use another name";
    Error::AlreadyExists(format!("schedule {name:?}: {problem}"))
}

/// An error for an invalid field of a schedule.
fn wrong((field, problem): (&'static str, String)) -> Error {
    Error::invalid(format!("schedule.{field}"), problem)
}
