//! Schedules: definition, state and rules. No I/O.

mod change;
pub mod fire;
pub mod plan;
mod replan;
mod template;

use std::time::SystemTime;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{ClusterSettings, NewJob, truncated};
use crate::error::Error;

pub use fire::Firing;
pub use plan::cron_in_words;
pub use plan::{Plan, PlanText};
pub use template::Template;

/// Job header with the name of the schedule that enqueued the job.
pub const SCHEDULE_HEADER: &str = "howdah-schedule";
/// Job header with the planned time of the job, in RFC 3339.
pub const PLANNED_TIME_HEADER: &str = "howdah-planned-time";
/// Maximum number of schedules in a cluster. It is bounded because each broker handles all of them.
pub const MAX_SCHEDULES: i64 = 10_000;
/// Maximum number of schedules that one principal may create.
pub const MOST_OF_PRINCIPAL: i64 = MAX_SCHEDULES / 4;

/// Maximum number of jobs per schedule that are watched for their end; older jobs are ignored.
const MAX_JOB_IDS: usize = 100;

/// Creates a job from a template and the headers of a firing. Templates are stored as received, so each firing validates them like
/// the API.
pub type CheckTemplate = fn(&Template, headers: [(&'static str, String); 2], &ClusterSettings) -> Result<NewJob, Error>;

/// Definition of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSpec {
    /// Name.
    pub name: String,
    /// Template of the schedule's jobs.
    pub template: Template,
    /// Plan of its firing times.
    pub plan: PlanText,
    /// Point from which the next period is counted.
    pub drift: Drift,
    /// Policy for planned times while an earlier job is unfinished.
    pub overlap: Overlap,
    /// Policy for missed planned times.
    pub missed: Missed,
    /// Start time, in µs after 1970: the schedule does not fire earlier.
    pub start: Option<i64>,
    /// End time, in µs after 1970: the schedule does not fire from then on.
    pub end: Option<i64>,
    /// Maximum random delay of a firing, in ms.
    pub jitter_ms: i64,
}

/// State of a schedule. Times are in µs after 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleState {
    /// Whether the schedule is paused.
    pub paused: bool,
    /// Start of the first period.
    pub anchor: i64,
    /// Whether an SQL function has defined the schedule, and no broker has planned it yet. Then `anchor` is the start of the
    /// current period, if the schedule has fired.
    pub unplanned: bool,
    /// Next planned time; `None` if the schedule never fires again, or waits for its last job to end.
    pub next: Option<i64>,
    /// The next planned time, and the offset of the time zone at that time in s, by the time zone rules that were used
    /// to plan it.
    pub zone_offset: Option<(i64, i32)>,
    /// Planned time that is held until an unfinished job of the schedule has ended (`Overlap::OneWaiting`).
    pub held: Option<i64>,
    /// Whether the schedule is waiting for its unfinished jobs to end.
    pub watching: bool,
    /// Ids of the schedule's jobs that may be unfinished.
    pub job_ids: Vec<i64>,
    /// Planned time of the last firing.
    pub last_planned: Option<i64>,
    /// Time of the last firing.
    pub last_fired: Option<i64>,
    /// Id of the job of the last firing.
    pub last_job_id: Option<i64>,
    /// Number of jobs that the schedule has enqueued.
    pub fired: i64,
    /// Number of skipped planned times.
    pub skipped: i64,
    /// Error of the last firing, if it failed.
    pub last_error: Option<String>,
    /// Earliest time of the next attempt to fire, after an attempt that failed or was blocked by a lock.
    pub not_before: Option<i64>,
}

/// A stored schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Definition.
    pub spec: ScheduleSpec,
    /// State.
    pub state: ScheduleState,
    /// Time when the schedule was created.
    pub created: SystemTime,
    /// Time when the schedule was last changed.
    pub updated: SystemTime,
}

/// Point from which the next period is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The next period is counted from the previous planned time.
    Plan,
    /// The next period is counted from the end of the last job.
    End,
}

/// Policy for planned times while an earlier job is unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Fire anyway.
    Allow,
    /// Skip the planned time.
    Skip,
    /// Hold one planned time until the job has finished; skip the others.
    OneWaiting,
}

/// Policy for planned times that were missed because no broker was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Skip all.
    Skip,
    /// Fire for the newest missed time.
    One,
    /// Fire for the newest missed times, up to this number.
    All(u32),
}

impl Drift {
    /// Name in SQL and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::End => "end",
        }
    }

    /// The drift with this name.
    pub fn parse(name: &str) -> Self {
        if name == "end" { Self::End } else { Self::Plan }
    }
}

impl Overlap {
    /// Name in SQL and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
            Self::OneWaiting => "one-waiting",
        }
    }

    /// The policy with this name.
    pub fn parse(name: &str) -> Self {
        match name {
            "skip" => Self::Skip,
            "one-waiting" => Self::OneWaiting,
            _ => Self::Allow,
        }
    }
}

impl Missed {
    /// Default of the maximum number in [`Missed::All`].
    pub const DEFAULT_LIMIT: u32 = 100;
    /// Highest allowed number in [`Missed::All`].
    pub const MAX_LIMIT: u32 = 1_000;

    /// Name in SQL and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::One => "one",
            Self::All(_) => "all",
        }
    }

    /// Maximum number of missed times to fire.
    pub const fn limit(self) -> u32 {
        match self {
            Self::Skip => 0,
            Self::One => 1,
            Self::All(limit) => limit,
        }
    }

    /// The policy with this name.
    pub fn parse(name: &str, limit: u32) -> Self {
        match name {
            "skip" => Self::Skip,
            "all" => Self::All(limit),
            _ => Self::One,
        }
    }
}

impl ScheduleSpec {
    /// Random delay after a planned time, in µs. It is the same on every broker.
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

    /// Returns the first planned time after `after`; `None` if it is not before the end of the schedule.
    pub fn next_after(&self, plan: &Plan, anchor: i64, after: i64) -> Option<i64> {
        plan.next_after(anchor, after).filter(|next| self.end.is_none_or(|end| *next < end))
    }

    /// Returns the state of a new schedule. The error names the field and the problem.
    pub fn planned_from(&self, plan: &Plan, now: i64) -> Result<ScheduleState, (&'static str, String)> {
        self.planned_since(plan, None, now)
    }

    /// Returns the planned times of a schedule whose current period began at `began`; `None`: it has not fired yet. A period
    /// without a start time is due at once, or one period after `began`. The error names the field and the problem.
    fn planned_since(
        &self,
        plan: &Plan,
        began: Option<i64>,
        now: i64,
    ) -> Result<ScheduleState, (&'static str, String)> {
        let (anchor, next) = match (self.start, plan) {
            (None, Plan::Period(period)) => {
                let first = began.map_or(now, |began| began.saturating_add(*period).max(now));
                (first, self.next_after(plan, first, first - 1))
            }
            (start, _) => {
                let anchor = start.unwrap_or(now);
                (anchor, self.next_after(plan, anchor, now))
            }
        };
        let next = next.ok_or_else(|| self.never())?;
        Ok(ScheduleState { anchor, next: Some(next), ..ScheduleState::default() })
    }

    /// Returns the first planned times of a new schedule, up to `at_most`. The error names the field and the problem.
    pub fn first_times(&self, now: i64, at_most: usize) -> Result<Vec<i64>, (&'static str, String)> {
        let plan = self.plan.parse()?;
        let state = self.planned_from(&plan, now)?;
        Ok(self.times_from(&plan, &state, at_most))
    }

    /// Returns the next planned times, up to `at_most`. With `Drift::End` only the first one is known.
    fn times_from(&self, plan: &Plan, state: &ScheduleState, at_most: usize) -> Vec<i64> {
        let at_most = if self.drift == Drift::End { 1 } else { at_most };
        let next = |time: &i64| self.next_after(plan, state.anchor, *time);
        std::iter::successors(state.next, next).take(at_most).collect()
    }

    /// Error for a schedule that would never fire.
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
    /// Time of the next check, in µs after 1970. `None` if the schedule is paused or has no next planned time. A schedule that
    /// is not planned yet is checked at once.
    pub fn next_at(&self) -> Option<i64> {
        if self.state.unplanned {
            return Some(self.state.not_before.unwrap_or(self.state.anchor));
        }
        let next = self.state.next.filter(|_| !self.state.paused)?;
        Some(next.saturating_add(self.spec.jitter_of(next)).max(self.state.not_before.unwrap_or(i64::MIN)))
    }

    /// Headers of the job of this planned time.
    pub fn headers(&self, planned: i64) -> [(&'static str, String); 2] {
        let planned = Timestamp::from_microsecond(planned).unwrap_or(Timestamp::UNIX_EPOCH);
        [(SCHEDULE_HEADER, self.spec.name.clone()), (PLANNED_TIME_HEADER, planned.to_string())]
    }

    /// Records the jobs of a firing. `unfinished` tells which earlier jobs are unfinished.
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

    /// Postpones the firing by a second, because another transaction has locked rows that its job needs.
    pub fn has_met_lock(&mut self, now: i64) {
        self.state.not_before = Some(now.saturating_add(1_000_000));
    }

    /// Records a failed firing. The next planned time is retried in a minute; a held planned time is skipped.
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

    /// Whether unfinished jobs of the schedule affect when it fires.
    pub fn minds_its_jobs(&self) -> bool {
        self.spec.overlap != Overlap::Allow || self.spec.drift == Drift::End
    }

    /// The next planned times, up to `at_most`.
    pub fn next_times(&self, at_most: usize) -> Vec<i64> {
        match self.spec.plan.parse() {
            Ok(plan) if !self.state.paused => self.spec.times_from(&plan, &self.state, at_most),
            _ => Vec::new(),
        }
    }
}
