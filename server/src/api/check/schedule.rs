//! Checks of schedules and of the jobs of their templates.

use std::time::{Duration, SystemTime};

use howdah_core::{
    error::Error,
    job::{
        ClusterSettings, NewJob,
        schedule::{Drift, Missed, Overlap, PLANNED_TIME_HEADER, PlanText, SCHEDULE_HEADER, ScheduleSpec, Template},
    },
};
use howdah_proto::v1::{self, schedule::Plan as WirePlan};

use super::{new_job::new_job, numbers, text, time};

pub(crate) const NAME_BYTES: usize = 200;
/// Minimum period of a schedule. Cron expressions cannot be finer either.
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Maximum jitter of a schedule.
pub(crate) const DAY: Duration = Duration::from_hours(24);
/// Maximum period of a schedule: ten years.
pub(crate) const LONGEST: Duration = Duration::from_hours(3650 * 24);
/// Range of the start and end times of a schedule: any year that a `Timestamp` can express.
const CENTURIES: Duration = Duration::from_secs(253_402_300_799);
/// Longest possible value of the header with the planned time, to check the size of the headers.
const A_TIME: &str = "9999-12-31T23:59:59.999999Z";

/// Checks a schedule. Returns its definition, and whether it is paused.
pub(crate) fn schedule(
    schedule: Option<v1::Schedule>,
    limits: &ClusterSettings,
) -> Result<(ScheduleSpec, bool), Error> {
    let schedule =
        schedule.ok_or_else(|| Error::invalid("schedule", "is not set; set the definition of the schedule"))?;
    let paused = schedule.paused;
    let spec = spec(schedule, limits).map_err(|error| error.within("schedule"))?;
    Ok((spec, paused))
}

/// Checks the name of a schedule.
pub(crate) fn schedule_name(field: &str, name: &str) -> Result<String, Error> {
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
    let name = schedule_name("name", &schedule.name)?;
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
        overlap: overlap(schedule.overlap)?,
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
    let template = Template::new(job).map_err(|error| Error::Internal(format!("a job has no JSON: {error}")))?;
    let headers = [(SCHEDULE_HEADER, name.to_owned()), (PLANNED_TIME_HEADER, A_TIME.to_owned())];
    job_of_template(&template, headers, limits)?;
    Ok(template)
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
    match v1::Drift::try_from(number) {
        Ok(v1::Drift::End) if matches!(plan, PlanText::Cron { .. }) => {
            Err(Error::invalid("drift", "is DRIFT_END, which is for periods only; set DRIFT_PLAN, or a period"))
        }
        Ok(v1::Drift::Unspecified | v1::Drift::Plan) => Ok(Drift::Plan),
        Ok(v1::Drift::End) => Ok(Drift::End),
        Err(_) => Err(unknown("drift", number)),
    }
}

fn overlap(number: i32) -> Result<Overlap, Error> {
    match v1::OverlapPolicy::try_from(number) {
        Ok(v1::OverlapPolicy::Unspecified | v1::OverlapPolicy::Allow) => Ok(Overlap::Allow),
        Ok(v1::OverlapPolicy::Skip) => Ok(Overlap::Skip),
        Ok(v1::OverlapPolicy::OneWaiting) => Ok(Overlap::OneWaiting),
        Err(_) => Err(unknown("overlap", number)),
    }
}

fn missed(number: i32, limit: u32) -> Result<Missed, Error> {
    let policy = v1::MissedPolicy::try_from(number).map_err(|_| unknown("missed", number))?;
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

fn unknown(field: &str, number: i32) -> Error {
    Error::invalid(field, format!("is the unknown value {number}"))
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
