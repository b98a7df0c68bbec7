//! Schedules: their definition, their state, and the rules. No I/O.

pub(crate) mod fire;
pub(crate) mod plan;

use std::time::SystemTime;

use bytes::Bytes;
use howdah_proto::v1;
use jiff::Timestamp;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{ClusterSettings, NewJob, truncated};
use crate::error::Error;

pub use fire::Firing;
pub(crate) use plan::cron_in_words;
pub use plan::{Plan, PlanText};

/// The header with the name of the schedule that enqueued the job.
pub const SCHEDULE_HEADER: &str = "howdah-schedule";
/// The header with the planned time of the job, in RFC 3339.
pub const PLANNED_TIME_HEADER: &str = "howdah-planned-time";
/// Most schedules in a cluster: each broker handles all of them.
pub const MAX_SCHEDULES: i64 = 10_000;
/// The most of them that one principal creates.
pub const MOST_OF_PRINCIPAL: i64 = MAX_SCHEDULES / 4;

/// Jobs of a schedule whose end is watched; older ones are ignored.
const MAX_JOB_IDS: usize = 100;

/// Makes a job from a template and the headers of this firing. Templates are stored as they came over the wire, so each
/// firing checks them as the API does.
pub type CheckTemplate = fn(&Template, headers: [(&'static str, String); 2], &ClusterSettings) -> Result<NewJob, Error>;

/// The job that a schedule enqueues.
#[derive(Clone, Debug, Eq)]
pub struct Template {
    /// A `howdah.v1.NewJob` without its payload, serialized.
    pub message: Bytes,
    /// Its payload.
    pub payload: Bytes,
    /// Its task type, for lists.
    pub task_type: String,
}

impl PartialEq for Template {
    /// Compares decoded messages, because headers have no order and so one message has several encodings.
    fn eq(&self, other: &Self) -> bool {
        let message = |template: &Self| v1::NewJob::decode(&template.message[..]).ok();
        self.payload == other.payload && message(self) == message(other)
    }
}

/// The definition of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSpec {
    /// Its name.
    pub name: String,
    /// The job.
    pub template: Template,
    /// When it fires.
    pub plan: PlanText,
    /// From when a period counts.
    pub drift: Drift,
    /// What to do while an earlier job is not finished.
    pub overlap: Overlap,
    /// What to do about planned times that were missed.
    pub missed: Missed,
    /// It does not fire before this time; µs after 1970.
    pub start: Option<i64>,
    /// It does not fire from this time on; µs after 1970.
    pub end: Option<i64>,
    /// Fires up to this many ms late, at random.
    pub jitter_ms: i64,
}

/// The state of a schedule. Times are µs after 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleState {
    /// Whether it is paused.
    pub paused: bool,
    /// Periods count from here.
    pub anchor: i64,
    /// The next planned time.
    pub next: Option<i64>,
    /// The planned time that waits for a job to finish.
    pub held: Option<i64>,
    /// Whether the end of its jobs has consequences.
    pub watching: bool,
    /// Ids of its jobs that may be unfinished.
    pub job_ids: Vec<i64>,
    /// The planned time of the last firing.
    pub last_planned: Option<i64>,
    /// When it fired last.
    pub last_fired: Option<i64>,
    /// The job of the last firing.
    pub last_job_id: Option<i64>,
    /// Jobs enqueued.
    pub fired: i64,
    /// Planned times that were skipped.
    pub skipped: i64,
    /// Why the last firing failed.
    pub last_error: Option<String>,
    /// Earliest time of the next try after a failure.
    pub not_before: Option<i64>,
}

/// A schedule as stored.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Its definition.
    pub spec: ScheduleSpec,
    /// Its state.
    pub state: ScheduleState,
    /// When it was created.
    pub created: SystemTime,
    /// When it was changed.
    pub updated: SystemTime,
}

/// From when a period counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The previous planned time.
    Plan,
    /// The end of the last job.
    End,
}

/// What to do while an earlier job is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Fire.
    Allow,
    /// Skip the planned time.
    Skip,
    /// Hold one planned time until the job has finished; skip the others.
    OneWaiting,
}

/// What to do about planned times that were missed because no broker ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Nothing.
    Skip,
    /// Fire for the newest.
    One,
    /// Fire for the newest ones, up to this number.
    All(u32),
}

impl Drift {
    /// Its name, in SQL and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::End => "end",
        }
    }

    /// The drift of that name.
    pub fn parse(name: &str) -> Self {
        if name == "end" { Self::End } else { Self::Plan }
    }
}

impl Overlap {
    /// Its name, in SQL and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
            Self::OneWaiting => "one-waiting",
        }
    }

    /// The policy of that name.
    pub fn parse(name: &str) -> Self {
        match name {
            "skip" => Self::Skip,
            "one-waiting" => Self::OneWaiting,
            _ => Self::Allow,
        }
    }
}

impl Missed {
    /// The number in `All` if none is given.
    pub const DEFAULT_LIMIT: u32 = 100;
    /// The highest number in `All`.
    pub const MAX_LIMIT: u32 = 1_000;

    /// Its name, in SQL and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::One => "one",
            Self::All(_) => "all",
        }
    }

    /// How many missed times are fired.
    pub const fn limit(self) -> u32 {
        match self {
            Self::Skip => 0,
            Self::One => 1,
            Self::All(limit) => limit,
        }
    }

    /// The policy of that name.
    pub fn parse(name: &str, limit: u32) -> Self {
        match name {
            "skip" => Self::Skip,
            "all" => Self::All(limit),
            _ => Self::One,
        }
    }
}

impl ScheduleSpec {
    /// How many µs after a planned time it fires: the same at every broker.
    pub fn jitter_of(&self, planned: i64) -> i64 {
        if self.jitter_ms <= 0 {
            return 0;
        }
        let mut hash = Sha256::new();
        hash.update(self.name.as_bytes());
        hash.update(planned.to_be_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let draw = digest.iter().take(8).fold(0_u64, |draw, byte| draw << 8 | u64::from(*byte));
        (draw % (self.jitter_ms as u64 * 1000 + 1)) as i64
    }

    /// The first planned time after `after`, if that is before the end.
    pub fn next_after(&self, plan: &Plan, anchor: i64, after: i64) -> Option<i64> {
        plan.next_after(anchor, after).filter(|next| self.end.is_none_or(|end| *next < end))
    }

    /// The state of a new schedule, or of one whose plan has changed. An error names the field.
    pub fn planned_from(&self, plan: &Plan, now: i64) -> Result<ScheduleState, (&'static str, String)> {
        let anchor = match (self.start, plan) {
            (Some(start), _) => start,
            (None, Plan::Period(period)) => now.saturating_add(*period),
            (None, Plan::Cron(_)) => now,
        };
        let Some(next) = self.next_after(plan, anchor, now) else {
            return Err(self.never());
        };
        Ok(ScheduleState { anchor, next: Some(next), ..ScheduleState::default() })
    }

    /// Why there is no next time.
    fn never(&self) -> (&'static str, String) {
        match (self.end, &self.plan) {
            (None, PlanText::Cron { expression, .. }) => {
                ("cron.expression", format!("is {expression:?}, which no date matches; name a day that exists"))
            }
            _ => (
                "end_time",
                "is not after the next planned time, so the schedule would never fire; set a later time".into(),
            ),
        }
    }
}

impl Schedule {
    /// When to check it, µs after 1970. `None`: never, or when its jobs have finished.
    pub fn next_at(&self) -> Option<i64> {
        let next = self.state.next.filter(|_| !self.state.paused)?;
        Some(next.saturating_add(self.spec.jitter_of(next)).max(self.state.not_before.unwrap_or(i64::MIN)))
    }

    /// The headers that the job of this planned time gets.
    pub fn headers(&self, planned: i64) -> [(&'static str, String); 2] {
        let planned = Timestamp::from_microsecond(planned).unwrap_or(Timestamp::UNIX_EPOCH);
        [(SCHEDULE_HEADER, self.spec.name.clone()), (PLANNED_TIME_HEADER, planned.to_string())]
    }

    /// Records the jobs of a firing. `unfinished` says which earlier jobs are not finished.
    pub fn has_fired(&mut self, jobs: &[i64], planned: Option<i64>, now: i64, unfinished: impl Fn(i64) -> bool) {
        let state = &mut self.state;
        state.last_error = None;
        state.last_planned = planned.or(state.last_planned);
        state.job_ids.retain(|id| unfinished(*id));
        let Some(last) = jobs.last() else { return };
        state.fired += jobs.len() as i64;
        state.last_fired = Some(now);
        state.last_job_id = Some(*last);
        state.job_ids.extend(jobs);
        let old = state.job_ids.len().saturating_sub(MAX_JOB_IDS);
        state.job_ids.drain(..old);
    }

    /// Another transaction has locked what its job needs: it is tried again in a second.
    pub fn has_met_lock(&mut self, now: i64) {
        self.state.not_before = Some(now.saturating_add(1_000_000));
    }

    /// Records that it could not fire. The next planned time is tried again in a minute; a held one is skipped.
    pub fn has_failed(&mut self, problem: &str, now: i64) {
        let state = &mut self.state;
        state.last_error = Some(truncated(problem, 1_000));
        state.not_before = Some(now.saturating_add(60_000_000));
        state.skipped += i64::from(state.held.take().is_some());
        if let (true, None, Drift::End, PlanText::Period(ms)) =
            (std::mem::take(&mut state.watching), state.next, self.spec.drift, &self.spec.plan)
        {
            state.anchor = now.saturating_add(ms.saturating_mul(1000));
            state.next = Some(state.anchor).filter(|next| self.spec.end.is_none_or(|end| *next < end));
        }
    }

    /// Whether it matters which of its jobs have finished.
    pub fn minds_its_jobs(&self) -> bool {
        self.spec.overlap != Overlap::Allow || self.spec.drift == Drift::End
    }

    /// The next planned times, at most `at_most`.
    pub fn next_times(&self, at_most: usize) -> Vec<i64> {
        let (Some(first), Ok(plan), false) = (self.state.next, self.spec.plan.parse(), self.state.paused) else {
            return Vec::new();
        };
        let at_most = if self.spec.drift == Drift::End { 1 } else { at_most };
        let next = |time: &i64| self.spec.next_after(&plan, self.state.anchor, *time);
        std::iter::successors(Some(first), next).take(at_most).collect()
    }

    /// Replaces the definition. The planned times stay the same if the plan does. An error names the field.
    pub fn redefine(&mut self, spec: ScheduleSpec, now: i64) -> Result<(), (&'static str, String)> {
        let plan = spec.plan.parse()?;
        let state = &mut self.state;
        let same = spec.plan == self.spec.plan && spec.drift == self.spec.drift && spec.start == self.spec.start;
        // The period counts from the end of a job that is not finished, so the next time is not known yet.
        let waits = same && state.watching && spec.drift == Drift::End;
        if !same {
            let fresh = spec.planned_from(&plan, now)?;
            (state.anchor, state.next) = (fresh.anchor, fresh.next);
        } else if !waits {
            let kept = state.next.filter(|next| spec.end.is_none_or(|end| *next < end));
            let next = kept.or_else(|| spec.next_after(&plan, state.anchor, now));
            state.next = Some(next.ok_or_else(|| spec.never())?);
        }
        if spec.overlap != Overlap::OneWaiting && state.held.take().is_some() {
            state.skipped += 1;
        }
        state.watching = waits || state.held.is_some();
        state.last_error = None;
        self.spec = spec;
        Ok(())
    }

    /// Pauses it.
    pub fn pause(&mut self) {
        self.state.paused = true;
        self.state.watching = false;
        if self.state.held.take().is_some() {
            self.state.skipped += 1;
        }
    }

    /// Resumes it; planned times during the pause are skipped.
    pub fn resume(&mut self, now: i64) -> Result<(), (&'static str, String)> {
        if !std::mem::take(&mut self.state.paused) {
            return Ok(());
        }
        let plan = self.spec.plan.parse()?;
        if self.state.next.is_some_and(|next| next > now) {
            return Ok(());
        }
        if let (Drift::End, Plan::Period(period)) = (self.spec.drift, &plan) {
            self.state.anchor = now.saturating_add(*period);
        }
        self.state.next = self.spec.next_after(&plan, self.state.anchor, now);
        Ok(())
    }
}
