//! Schedules, which enqueue jobs at planned times.

use std::time::{Duration, SystemTime};

use howdah_proto::v1 as proto;

use crate::{
    Client, Enqueued, NewJob, Result,
    call::{call, calls, found, pages},
    enqueue::{enqueued, new_request_key},
    setters::setters,
    time,
};

/// The planned times of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan(proto::schedule::Plan);

impl Plan {
    /// Plans one time per period: 1 s to 3,650 days. The first one is now, or [`NewSchedule::start`].
    pub fn every(period: Duration) -> Self {
        Self(proto::schedule::Plan::Period(time::to_proto(period)))
    }

    /// Plans calendar times by a cron expression: `30 2 * * *` in `Europe/Berlin`.
    pub fn cron(expression: impl Into<String>, time_zone: impl Into<String>) -> Self {
        let cron = proto::Cron { expression: expression.into(), time_zone: time_zone.into() };
        Self(proto::schedule::Plan::Cron(cron))
    }
}

/// A schedule to create.
///
/// Nothing is checked here. If the broker refuses a field, its error names the field and its bounds.
///
/// ```
/// # use howdah_client::{NewJob, NewSchedule, Plan, proto::OverlapPolicy};
/// # use std::time::Duration;
/// let nightly = NewSchedule::new("report", NewJob::new("report.make"), Plan::cron("30 2 * * *", "Europe/Berlin"))
///     .overlap(OverlapPolicy::Skip)
///     .jitter(Duration::from_secs(60));
/// assert_eq!(nightly.name(), "report");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a schedule does nothing until it is created"]
pub struct NewSchedule(proto::Schedule);

impl NewSchedule {
    /// Creates a schedule with this name (1 to 200 bytes of `A-Z a-z 0-9 . _ : / -`) that enqueues `job`.
    pub fn new(name: impl Into<String>, job: NewJob, plan: Plan) -> Self {
        Self(proto::Schedule {
            name: name.into(),
            template: Some(job.into_proto()),
            plan: Some(plan.0),
            ..proto::Schedule::default()
        })
    }

    /// The name of the schedule.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Catches up on this many missed times at most, the newest ones: 1 to 1,000.
    pub fn missed_all(mut self, limit: u32) -> Self {
        self.0.missed_limit = limit;
        self.missed(proto::MissedPolicy::All)
    }

    setters! {
        /// Sets the start of a period: the planned time, or the end of the last job.
        drift(drift: proto::Drift) => 0.drift = drift as i32;

        /// Sets the overlap policy: what to do while an earlier job is unfinished.
        overlap(policy: proto::OverlapPolicy) => 0.overlap = policy as i32;

        /// Sets the policy for times that were missed because no broker ran.
        missed(policy: proto::MissedPolicy) => 0.missed = policy as i32;

        /// Plans no time before `at`. A period begins then.
        start(at: SystemTime) => 0.start_time = Some(at.into());

        /// Plans no time at or after `at`.
        end(at: SystemTime) => 0.end_time = Some(at.into());

        /// Delays each enqueue of the schedule by a pseudo-random part of this time. At most 24 h, and at most the period.
        jitter(jitter: Duration) => 0.jitter = Some(time::to_proto(jitter));

        /// Creates the schedule paused: it enqueues nothing until it is resumed.
        paused(paused: bool) => 0.paused = paused;
    }

    /// Converts to the protocol message.
    pub fn into_proto(self) -> proto::Schedule {
        self.0
    }
}

impl From<proto::Schedule> for NewSchedule {
    fn from(schedule: proto::Schedule) -> Self {
        Self(schedule)
    }
}

impl Client {
    calls! {
        /// Creates a schedule; the response has its next ten times. If a schedule with the same definition exists, it is
        /// returned. With another definition the error is `ALREADY_EXISTS`.
        fn create_schedule(schedule: NewSchedule) -> proto::Schedule =
            Change schedules.create_schedule(proto::CreateScheduleRequest { schedule: Some(schedule.0) }).schedule;

        /// Replaces the definition of a schedule; with `allow_missing`, creates it if it does not exist.
        fn update_schedule(schedule: NewSchedule, allow_missing: bool) -> proto::Schedule =
            Change schedules.update_schedule(proto::UpdateScheduleRequest {
                schedule: Some(schedule.0),
                allow_missing,
            }).schedule;

        /// Pauses a schedule until [`resume_schedule`](Client::resume_schedule).
        fn pause_schedule(name: impl Into<String>) -> proto::Schedule =
            Change schedules.pause_schedule(proto::PauseScheduleRequest { name: name.into() }).schedule;

        /// Resumes a schedule, from its next planned time on.
        fn resume_schedule(name: impl Into<String>) -> proto::Schedule =
            Change schedules.resume_schedule(proto::ResumeScheduleRequest { name: name.into() }).schedule;
    }

    /// Creates a schedule, or replaces its definition. Programs call this at each start: it is idempotent, an unchanged plan keeps
    /// its planned times, and a paused schedule stays paused.
    pub async fn apply_schedule(&self, schedule: NewSchedule) -> Result<proto::Schedule> {
        self.update_schedule(schedule, true).await
    }

    /// Gets a schedule with its next ten times; `None` if it does not exist.
    pub async fn get_schedule(&self, name: impl Into<String>) -> Result<Option<proto::Schedule>> {
        let request = proto::GetScheduleRequest { name: name.into() };
        Ok(found(call!(Read self.schedules().get_schedule(request)))?.and_then(|answer| answer.schedule))
    }

    /// Lists all schedules by name, without payloads, each with its next time.
    pub async fn list_schedules(&self) -> Result<Vec<proto::Schedule>> {
        pages!(self.schedules().list_schedules(proto::ListSchedulesRequest::default()).schedules, usize::MAX)
    }

    /// Deletes a schedule; its jobs stay. Returns whether it existed.
    pub async fn delete_schedule(&self, name: impl Into<String>) -> Result<bool> {
        let request = proto::DeleteScheduleRequest { name: name.into() };
        Ok(found(call!(Change self.schedules().delete_schedule(request)))?.is_some())
    }

    /// Enqueues a job of the schedule now, in addition to its plan. Retries like [`enqueue`](Client::enqueue), with one request
    /// key.
    pub async fn run_schedule(&self, name: impl Into<String>) -> Result<Enqueued> {
        self.run_schedule_with_key(name, new_request_key()).await
    }

    /// Enqueues a job of the schedule now, with the caller's request key. The call is idempotent for 24 hours, from any process:
    /// the same key returns the same job.
    pub async fn run_schedule_with_key(
        &self,
        name: impl Into<String>,
        request_key: impl Into<String>,
    ) -> Result<Enqueued> {
        let request = proto::RunScheduleRequest { name: name.into(), request_key: request_key.into() };
        let response = call!(Keyed self.schedules().run_schedule(request))?;
        Ok(enqueued(response.job.into_iter().collect(), 1)?[0])
    }
}
