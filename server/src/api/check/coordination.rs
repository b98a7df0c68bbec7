//! Checks of options that coordinate jobs: keys with policies, expiry, limits, stages and dependencies.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_core::{
    error::Error,
    job::{
        ClusterSettings, DependencyFailure, HolderFailure, JobOptions, KeyPolicy, StagePayload, Start, TaskTypeName,
    },
};
use howdah_proto::v1::{self, new_job::Expiry};

use super::{numbers, task_type, time};

/// Maximum number of next stages of a job.
const STAGES: usize = 100;
/// Minimum time for which a job holds its key.
const SECOND: Duration = Duration::from_secs(1);

/// Checks the options that coordinate jobs, and moves them from the message to the job options. `start` is the earliest start
/// of the job.
pub(super) fn coordinate(
    job: &mut v1::NewJob,
    options: JobOptions,
    start: Start,
    limits: &ClusterSettings,
    now: SystemTime,
) -> Result<JobOptions, Error> {
    let ms = |duration: Duration| duration.as_millis() as i64;
    let debounce = time::MILLISECOND..=time::YEAR;
    let (expire_at_us, expire_after_ms) = expiry(job.expiry, start, limits, now)?;
    Ok(JobOptions {
        key_policy: key_policy(job, start)?,
        key_version: job.key_version,
        key_hold_ms: time::optional("key_hold", job.key_hold, &(SECOND..=time::YEAR))?.map(ms),
        key_debounce_limit_ms: time::optional("key_debounce_limit", job.key_debounce_limit, &debounce)?.map(ms),
        on_holder_failure: holder_failure(job)?,
        expire_at_us,
        expire_after_ms,
        stage_payload: stage_payload(job)?,
        on_dependency_failure: on_failure(job)?,
        after: after(job, limits)?,
        parent_id: parent(job.parent_id)?,
        ..options
    })
}

/// Checks the key policy. Returns `None` for the default, `Keep`.
fn key_policy(job: &v1::NewJob, start: Start) -> Result<Option<KeyPolicy>, Error> {
    let policy = match v1::KeyPolicy::try_from(job.key_policy) {
        Ok(v1::KeyPolicy::Unspecified | v1::KeyPolicy::Keep) => KeyPolicy::Keep,
        Ok(v1::KeyPolicy::Replace) => KeyPolicy::Replace,
        Ok(v1::KeyPolicy::ReplaceIfNewer) => KeyPolicy::ReplaceIfNewer,
        Ok(v1::KeyPolicy::Reject) => KeyPolicy::Reject,
        Ok(v1::KeyPolicy::Debounce) => KeyPolicy::Debounce,
        Err(_) => {
            return Err(Error::invalid("key_policy", format!("is the unknown value {}", job.key_policy)));
        }
    };
    let wrong = match policy {
        KeyPolicy::ReplaceIfNewer if job.key_version.is_none() => {
            Some(("key_version", "is not set; KEY_POLICY_REPLACE_IF_NEWER requires it"))
        }
        KeyPolicy::Debounce if start == Start::Now => {
            Some(("key_policy", "is KEY_POLICY_DEBOUNCE without a delay or run_at; set how far the job is put off"))
        }
        KeyPolicy::Debounce => None,
        _ if job.key_debounce_limit.is_some() => {
            Some(("key_debounce_limit", "is set without KEY_POLICY_DEBOUNCE; set key_policy too"))
        }
        _ => None,
    };
    match wrong {
        Some((field, problem)) => Err(Error::invalid(field, problem)),
        None => Ok(Some(policy).filter(|policy| *policy != KeyPolicy::Keep)),
    }
}

fn holder_failure(job: &v1::NewJob) -> Result<Option<HolderFailure>, Error> {
    match v1::HolderFailure::try_from(job.on_holder_failure) {
        Ok(v1::HolderFailure::Unspecified) => Ok(None),
        Ok(v1::HolderFailure::Supersede) => Ok(Some(HolderFailure::Supersede)),
        Ok(v1::HolderFailure::Retry) => Ok(Some(HolderFailure::Retry)),
        Err(_) => Err(Error::invalid("on_holder_failure", format!("is the unknown value {}", job.on_holder_failure))),
    }
}

/// Checks the expiry of a job, which must be after its start. Returns it in µs after 1970, or in ms after the enqueue.
fn expiry(
    expiry: Option<Expiry>,
    start: Start,
    limits: &ClusterSettings,
    now: SystemTime,
) -> Result<(Option<i64>, Option<i64>), Error> {
    let now_us = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    let us = |d: Duration| d.as_micros() as i64;
    let start_us = |now_us: i64| match start {
        Start::Now => i64::MIN,
        Start::At(at) => at,
        Start::After(delay) => now_us + us(delay),
    };
    let (field, expiry, at_us) = match expiry {
        None => return Ok((None, None)),
        Some(Expiry::ExpireAt(at)) => {
            let at = time::run_at("expire_at", at, now, limits.max_delay)?;
            ("expire_at", (Some(at), None), at)
        }
        Some(Expiry::ExpireAfter(after)) => {
            let after = time::duration("expire_after", after, &(time::MILLISECOND..=limits.max_delay))?;
            ("expire_after", (None, Some(after.as_millis() as i64)), now_us + us(after))
        }
    };
    if at_us <= start_us(now_us) {
        let early = Duration::from_micros(start_us(now_us).saturating_sub(at_us).unsigned_abs());
        let problem = match early.as_millis() {
            _ if field == "expire_after" => {
                let least = Duration::from_secs((start_us(now_us) - now_us).unsigned_abs().div_ceil(1_000_000));
                format!(
                    "counts from the enqueue and is not after the job's start (run_at or delay), so the job would never run; \
                     set more than {least:?}"
                )
            }
            0 => "is the job's start (run_at or delay), so the job would never run; set a later time".to_owned(),
            _ => format!(
                "is {early:?} before the job's start (run_at or delay), so the job would never run; set a later time"
            ),
        };
        return Err(Error::invalid(field, problem));
    }
    Ok(expiry)
}

/// Checks the task types of a job's next stages.
pub(super) fn next_stages(job: &v1::NewJob) -> Result<Vec<TaskTypeName>, Error> {
    numbers::entries("next_stages", job.next_stages.len(), 0..=STAGES)?;
    job.next_stages.iter().enumerate().map(|(i, name)| task_type(&format!("next_stages[{i}]"), name)).collect()
}

fn stage_payload(job: &v1::NewJob) -> Result<Option<StagePayload>, Error> {
    if job.next_stages.is_empty() {
        return Ok(None);
    }
    match v1::StagePayload::try_from(job.stage_payload) {
        Ok(v1::StagePayload::Unspecified | v1::StagePayload::Result) => Ok(Some(StagePayload::Result)),
        Ok(v1::StagePayload::Unchanged) => Ok(Some(StagePayload::Unchanged)),
        Err(_) => Err(Error::invalid("stage_payload", format!("is the unknown value {}", job.stage_payload))),
    }
}

fn after(job: &mut v1::NewJob, limits: &ClusterSettings) -> Result<Vec<i64>, Error> {
    numbers::entries("after", job.after.len(), 0..=limits.batch)?;
    if let Some(i) = job.after.iter().position(|id| *id <= 0) {
        return Err(Error::invalid(format!("after[{i}]"), format!("is {}, which is not a job's id", job.after[i])));
    }
    let mut after = std::mem::take(&mut job.after);
    let mut seen = HashSet::new();
    after.retain(|id| seen.insert(*id));
    Ok(after)
}

/// Checks what happens when a dependency fails. `LocalNames::resolve` sets the default for jobs with `after_local` only.
fn on_failure(job: &v1::NewJob) -> Result<Option<DependencyFailure>, Error> {
    match v1::DependencyFailure::try_from(job.on_dependency_failure) {
        Ok(v1::DependencyFailure::Unspecified) if job.after.is_empty() => Ok(None),
        Ok(v1::DependencyFailure::Unspecified | v1::DependencyFailure::Cancel) => Ok(Some(DependencyFailure::Cancel)),
        Ok(v1::DependencyFailure::Run) => Ok(Some(DependencyFailure::Run)),
        Ok(v1::DependencyFailure::Wait) => Ok(Some(DependencyFailure::Wait)),
        Err(_) => {
            let problem = format!("is the unknown value {}", job.on_dependency_failure);
            Err(Error::invalid("on_dependency_failure", problem))
        }
    }
}

fn parent(id: i64) -> Result<Option<i64>, Error> {
    match id {
        0 => Ok(None),
        1.. => Ok(Some(id)),
        _ => Err(Error::invalid("parent_id", format!("is {id}, which is not a job's id"))),
    }
}
