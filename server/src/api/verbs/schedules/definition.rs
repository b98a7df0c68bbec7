//! Definitions of schedules: checks, the jobs of their templates, and their conversion to messages.

use std::time::{Duration, SystemTime};

use howdah_core::{
    error::Error,
    job::{
        ClusterSettings, NewJob,
        schedule::{
            Drift, Missed, Overlap, PLANNED_TIME_HEADER, PlanText, SCHEDULE_HEADER, Schedule, ScheduleSpec, Template,
        },
    },
};
use howdah_proto::v1::{self, schedule::Plan as WirePlan};

use crate::api::{
    check::{new_job::new_job, numbers, text, time},
    enums::WireEnum as _,
    render::{self, duration, micros},
};

pub(crate) const NAME_BYTES: usize = 200;
/// Minimum period of a schedule. Cron expressions cannot be finer either.
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Maximum jitter of a schedule.
pub(crate) const DAY: Duration = Duration::from_hours(24);
/// Maximum period of a schedule: ten years.
pub(crate) const LONGEST: Duration = Duration::from_hours(3650 * 24);
/// Latest start and end time of a schedule, as time after 1970: the last second that a `Timestamp` can express.
const CENTURIES: Duration = Duration::from_secs(253_402_300_799);
/// Longest possible value of the header with the planned time, to check the size of the headers.
const A_TIME: &str = "9999-12-31T23:59:59.999999Z";

/// Checks a schedule. Returns its definition, and whether it is paused.
pub(crate) fn check(schedule: Option<v1::Schedule>, limits: &ClusterSettings) -> Result<(ScheduleSpec, bool), Error> {
    let schedule =
        schedule.ok_or_else(|| Error::invalid("schedule", "is not set; set the definition of the schedule"))?;
    let paused = schedule.paused;
    let spec = spec(schedule, limits).map_err(|error| error.within("schedule"))?;
    Ok((spec, paused))
}

/// Checks the name of a schedule.
pub(crate) fn check_name(field: &str, name: &str) -> Result<String, Error> {
    if name.is_empty() {
        return Err(Error::invalid(field, format!("is empty; 1 to {NAME_BYTES} bytes are allowed")));
    }
    text::short(field, name, NAME_BYTES)?;
    if let Some(bad) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !"._:/-".contains(*c)) {
        let problem = format!("{} has the character {bad:?}; allowed are A-Z a-z 0-9 . _ : / -", text::shown(name));
        return Err(Error::invalid(field, problem));
    }
    Ok(name.to_owned())
}

/// Builds the job for one firing of a schedule, from the template and the headers of the firing.
pub(crate) fn job_of_template(
    template: &Template,
    headers: [(&'static str, String); 2],
    limits: &ClusterSettings,
) -> Result<NewJob, Error> {
    let mut job = template.job().map_err(|error| Error::invalid("template", format!("is not a job: {error}")))?;
    job.headers.extend(headers.map(|(name, value)| (name.to_owned(), value)));
    new_job(job, limits, SystemTime::now()).map_err(|error| error.within("template"))
}

fn spec(schedule: v1::Schedule, limits: &ClusterSettings) -> Result<ScheduleSpec, Error> {
    let name = check_name("name", &schedule.name)?;
    let template = template(&name, schedule.template, limits)?;
    let plan = plan(schedule.plan)?;
    plan.parse().map_err(|(field, problem)| Error::invalid(field, problem))?;
    let period = match plan {
        PlanText::Period(ms) => Some(Duration::from_millis(ms as u64)),
        PlanText::Cron { .. } => None,
    };
    let start = schedule.start_time.map(|at| moment("start_time", at)).transpose()?;
    let end = schedule.end_time.map(|at| moment("end_time", at)).transpose()?;
    if end.is_some_and(|end| end <= start.unwrap_or(i64::MIN)) {
        return Err(Error::invalid("end_time", "is not after start_time; leave it out for no end"));
    }
    let jitter = Duration::ZERO..=period.unwrap_or(DAY).min(DAY);
    let jitter = time::optional("jitter", schedule.jitter, &jitter)?.unwrap_or_default();
    Ok(ScheduleSpec {
        name,
        template,
        drift: drift(schedule.drift, &plan)?,
        overlap: Overlap::from_number("overlap", schedule.overlap)?.unwrap_or(Overlap::Allow),
        missed: missed(schedule.missed, schedule.missed_limit)?,
        plan,
        start,
        end,
        jitter_ms: jitter.as_millis() as i64,
    })
}

/// Checks the template by making a job from it.
fn template(name: &str, job: Option<v1::NewJob>, limits: &ClusterSettings) -> Result<Template, Error> {
    let job = job.ok_or_else(|| Error::invalid("template", "is not set; set the job to enqueue"))?;
    if let Some(v1::new_job::Start::RunAt(_)) = job.start {
        return Err(Error::invalid(
            "template.run_at",
            "is set, but the schedule decides when its jobs start; leave it out, or set delay",
        ));
    }
    if let Some(v1::new_job::Expiry::ExpireAt(_)) = job.expiry {
        return Err(Error::invalid(
            "template.expire_at",
            "is set, but a fixed time does not fit every job of a schedule; set expire_after",
        ));
    }
    if !job.local_name.is_empty() || !job.after_local.is_empty() {
        let field = if job.local_name.is_empty() { "template.after_local" } else { "template.local_name" };
        return Err(Error::invalid(field, "is set, but a schedule enqueues single jobs; leave it out"));
    }
    if let Some(name) = [SCHEDULE_HEADER, PLANNED_TIME_HEADER].into_iter().find(|name| job.headers.contains_key(*name))
    {
        return Err(Error::invalid("template.headers", format!("have {name:?}, which the broker sets; leave it out")));
    }
    // The check comes before the conversion, because a value that is out of range has no JSON.
    let mut fired = job.clone();
    fired
        .headers
        .extend([(SCHEDULE_HEADER.to_owned(), name.to_owned()), (PLANNED_TIME_HEADER.to_owned(), A_TIME.to_owned())]);
    new_job(fired, limits, SystemTime::now()).map_err(|error| error.within("template"))?;
    Template::new(job).map_err(|error| Error::Internal(format!("a job has no JSON: {error}")))
}

fn plan(plan: Option<WirePlan>) -> Result<PlanText, Error> {
    match plan {
        Some(WirePlan::Period(period)) => {
            let period = time::duration("period", period, &(SECOND..=LONGEST))?;
            Ok(PlanText::Period(period.as_millis() as i64))
        }
        Some(WirePlan::Cron(v1::Cron { expression, time_zone })) => {
            Ok(PlanText::Cron { expression: expression.trim().to_owned(), time_zone })
        }
        None => Err(Error::invalid("plan", "is not set; set period or cron")),
    }
}

/// Converts a time to µs after 1970, in any year that a Timestamp can express.
fn moment(field: &str, at: prost_types::Timestamp) -> Result<i64, Error> {
    time::run_at(field, at, SystemTime::UNIX_EPOCH, CENTURIES)
}

fn drift(number: i32, plan: &PlanText) -> Result<Drift, Error> {
    let drift = Drift::from_number("drift", number)?.unwrap_or(Drift::Plan);
    if drift == Drift::End && matches!(plan, PlanText::Cron { .. }) {
        return Err(Error::invalid("drift", "is DRIFT_END, which is for periods only; set DRIFT_PLAN, or a period"));
    }
    Ok(drift)
}

fn missed(number: i32, limit: u32) -> Result<Missed, Error> {
    let policy = v1::MissedPolicy::try_from(number)
        .map_err(|_| Error::invalid("missed", format!("is the unknown value {number}")))?;
    if policy != v1::MissedPolicy::All && limit != 0 {
        let problem =
            format!("is {limit}, but missed is not MISSED_POLICY_ALL; set missed to that, or leave missed_limit out");
        return Err(Error::invalid("missed_limit", problem));
    }
    match policy {
        v1::MissedPolicy::Skip => Ok(Missed::Skip),
        v1::MissedPolicy::Unspecified | v1::MissedPolicy::One => Ok(Missed::One),
        v1::MissedPolicy::All => {
            let (default, max) = (i64::from(Missed::DEFAULT_LIMIT), i64::from(Missed::MAX_LIMIT));
            numbers::or_default("missed_limit", i64::from(limit), default, 1..=max).map(|n| Missed::All(n as u32))
        }
    }
}

/// Converts a schedule, with up to `next_times` planned times.
pub(crate) fn render(schedule: Schedule, next_times: usize) -> v1::Schedule {
    let next_times = schedule.next_times(next_times).into_iter().map(micros).collect();
    let Schedule { spec, state, created, updated } = schedule;
    // If the stored template cannot be decoded, the answer has only its task type and payload.
    let template = spec.template.job().unwrap_or_else(|_| v1::NewJob {
        task_type: spec.template.task_type,
        payload: spec.template.payload,
        ..v1::NewJob::default()
    });
    let millis = |ms: i64| duration(std::time::Duration::from_millis(ms.unsigned_abs()));
    let missed_limit = if let Missed::All(limit) = spec.missed { limit } else { 0 };
    v1::Schedule {
        name: spec.name,
        template: Some(template),
        plan: Some(match spec.plan {
            PlanText::Period(ms) => WirePlan::Period(millis(ms)),
            PlanText::Cron { expression, time_zone } => WirePlan::Cron(v1::Cron { expression, time_zone }),
        }),
        drift: spec.drift.number(),
        overlap: spec.overlap.number(),
        missed: missed_policy(spec.missed) as i32,
        missed_limit,
        start_time: spec.start.map(micros),
        end_time: spec.end.map(micros),
        jitter: (spec.jitter_ms > 0).then(|| millis(spec.jitter_ms)),
        paused: state.paused,
        next_times,
        waiting_time: state.held.map(micros),
        last_planned_time: state.last_planned.map(micros),
        last_fire_time: state.last_fired.map(micros),
        last_job_id: state.last_job_id.unwrap_or_default(),
        fired: state.fired,
        skipped: state.skipped,
        last_error: state.last_error.unwrap_or_default(),
        create_time: Some(render::time(created)),
        update_time: Some(render::time(updated)),
        store: String::new(),
    }
}

fn missed_policy(missed: Missed) -> v1::MissedPolicy {
    match missed {
        Missed::Skip => v1::MissedPolicy::Skip,
        Missed::One => v1::MissedPolicy::One,
        Missed::All(_) => v1::MissedPolicy::All,
    }
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
