//! What few jobs ask for: keys with policies, expiry, limits, stages, dependencies.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_proto::v1::{self, new_job::Expiry as WireExpiry};

use super::{numbers, task_type, text, time};
use crate::{
    error::Error,
    job::{ClusterSettings, Coordination, DependencyFailure, Expiry, KeyPolicy, NewJob, Start},
};

/// Stages that a job may have before it.
const STAGES: usize = 100;
/// Shortest hold of a key.
const SECOND: Duration = Duration::from_secs(1);

/// `None` when the job asks for nothing of this; `start` is when it may begin.
pub(super) fn special(
    job: &mut v1::NewJob,
    start: Start,
    limits: &ClusterSettings,
    now: SystemTime,
) -> Result<Option<Box<Coordination>>, Error> {
    let coordination = Coordination {
        key_policy: key_policy(job, start)?,
        key_version: job.key_version,
        key_hold: time::optional("key_hold", job.key_hold, &(SECOND..=time::YEAR))?,
        debounce_limit: time::optional(
            "key_debounce_limit",
            job.key_debounce_limit,
            &(time::MILLISECOND..=time::YEAR),
        )?,
        expiry: expiry(job.expiry, start, limits, now)?,
        limit_key: text::optional("limit_key", std::mem::take(&mut job.limit_key), limits.key_bytes)?,
        fair_key: text::optional("fair_key", std::mem::take(&mut job.fair_key), limits.key_bytes)?,
        next_stages: stages(job)?,
        same_payload: same_payload(job.stage_payload)?,
        after: after(job, limits)?,
        after_places: Vec::new(),
        has_dependents: false,
        on_failure: on_failure(job.on_dependency_failure)?,
        parent_id: parent(job.parent_id)?,
    };
    Ok((coordination != Coordination::default()).then(|| Box::new(coordination)))
}

fn key_policy(job: &v1::NewJob, start: Start) -> Result<KeyPolicy, Error> {
    let policy = match v1::KeyPolicy::try_from(job.key_policy) {
        Ok(v1::KeyPolicy::Unspecified | v1::KeyPolicy::Keep) => KeyPolicy::Keep,
        Ok(v1::KeyPolicy::Replace) => KeyPolicy::Replace,
        Ok(v1::KeyPolicy::ReplaceIfNewer) => KeyPolicy::ReplaceIfNewer,
        Ok(v1::KeyPolicy::Reject) => KeyPolicy::Reject,
        Ok(v1::KeyPolicy::Debounce) => KeyPolicy::Debounce,
        Err(_) => {
            let problem = format!("{} is no key policy that this broker knows", job.key_policy);
            return Err(Error::invalid("key_policy", problem));
        }
    };
    let needs_key = [
        ("key_policy", policy != KeyPolicy::Keep),
        ("key_version", job.key_version.is_some()),
        ("key_hold", job.key_hold.is_some()),
        ("key_debounce_limit", job.key_debounce_limit.is_some()),
    ];
    if let (Some((field, _)), true) = (needs_key.iter().find(|(_, set)| *set), job.key.is_empty()) {
        return Err(Error::invalid(*field, "is set without a key; set key too"));
    }
    let wrong = match policy {
        KeyPolicy::ReplaceIfNewer if job.key_version.is_none() => {
            Some(("key_version", "is not set; KEY_POLICY_REPLACE_IF_NEWER compares it"))
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
    wrong.map_or(Ok(policy), |(field, problem)| Err(Error::invalid(field, problem)))
}

fn expiry(
    expiry: Option<WireExpiry>,
    start: Start,
    limits: &ClusterSettings,
    now: SystemTime,
) -> Result<Option<Expiry>, Error> {
    let now_us = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    let us = |d: Duration| d.as_micros() as i64;
    let start_us = |now_us: i64| match start {
        Start::Now => i64::MIN,
        Start::At(at) => at,
        Start::After(delay) => now_us + us(delay),
    };
    let (field, expiry, at_us) = match expiry {
        None => return Ok(None),
        Some(WireExpiry::ExpireAt(at)) => {
            let at = time::run_at("expire_at", at, now, limits.max_delay)?;
            ("expire_at", Expiry::At(at), at)
        }
        Some(WireExpiry::ExpireAfter(after)) => {
            let after = time::duration("expire_after", after, &(time::MILLISECOND..=limits.max_delay))?;
            ("expire_after", Expiry::After(after), now_us + us(after))
        }
    };
    if at_us <= start_us(now_us) {
        let early = Duration::from_micros(start_us(now_us).saturating_sub(at_us).unsigned_abs());
        let problem = match early.as_millis() {
            0 => "is the job's start (run_at or delay): it would never run; make it later".to_owned(),
            _ => format!("is {early:?} before the job's start (run_at or delay): it would never run; make it later"),
        };
        return Err(Error::invalid(field, problem));
    }
    Ok(Some(expiry))
}

fn stages(job: &v1::NewJob) -> Result<Vec<crate::job::TaskTypeName>, Error> {
    numbers::entries("next_stages", job.next_stages.len(), 0..=STAGES)?;
    if job.next_stages.is_empty() && job.stage_payload != 0 {
        return Err(Error::invalid("stage_payload", "is set without next_stages; set those too"));
    }
    job.next_stages.iter().enumerate().map(|(i, name)| task_type(&format!("next_stages[{i}]"), name)).collect()
}

fn same_payload(number: i32) -> Result<bool, Error> {
    match v1::StagePayload::try_from(number) {
        Ok(v1::StagePayload::Unspecified | v1::StagePayload::Result) => Ok(false),
        Ok(v1::StagePayload::Unchanged) => Ok(true),
        Err(_) => Err(Error::invalid("stage_payload", format!("{number} is none that this broker knows"))),
    }
}

fn after(job: &mut v1::NewJob, limits: &ClusterSettings) -> Result<Vec<i64>, Error> {
    numbers::entries("after", job.after.len(), 0..=limits.batch)?;
    if let Some(i) = job.after.iter().position(|id| *id <= 0) {
        return Err(Error::invalid(format!("after[{i}]"), format!("is {}, which is no job's id", job.after[i])));
    }
    let mut after = std::mem::take(&mut job.after);
    after.sort_unstable();
    after.dedup();
    Ok(after)
}

fn on_failure(number: i32) -> Result<DependencyFailure, Error> {
    match v1::DependencyFailure::try_from(number) {
        Ok(v1::DependencyFailure::Unspecified | v1::DependencyFailure::Cancel) => Ok(DependencyFailure::Cancel),
        Ok(v1::DependencyFailure::Run) => Ok(DependencyFailure::Run),
        Ok(v1::DependencyFailure::Wait) => Ok(DependencyFailure::Wait),
        Err(_) => Err(Error::invalid("on_dependency_failure", format!("{number} is none that this broker knows"))),
    }
}

fn parent(id: i64) -> Result<Option<i64>, Error> {
    match id {
        0 => Ok(None),
        1.. => Ok(Some(id)),
        _ => Err(Error::invalid("parent_id", format!("is {id}, which is no job's id"))),
    }
}

/// The names that jobs of one request have for each other.
#[derive(Default)]
pub(super) struct LocalNames {
    // Only of jobs that have some.
    names: Vec<(usize, String)>,
    after: Vec<(usize, Vec<String>)>,
}

impl LocalNames {
    /// Takes those of the i-th job out of it.
    pub(super) fn take(&mut self, i: usize, job: &mut v1::NewJob, limits: &ClusterSettings) -> Result<(), Error> {
        if !job.local_name.is_empty() {
            text::plain("local_name", &job.local_name, limits.key_bytes)?;
            self.names.push((i, std::mem::take(&mut job.local_name)));
        }
        if job.after.is_empty() && job.after_local.is_empty() && job.on_dependency_failure != 0 {
            let problem = "is set without after or after_local; set one of those too";
            return Err(Error::invalid("on_dependency_failure", problem));
        }
        if !job.after_local.is_empty() {
            numbers::entries("after_local", job.after_local.len(), 0..=limits.batch)?;
            self.after.push((i, std::mem::take(&mut job.after_local)));
        }
        Ok(())
    }

    /// Writes the places of those that they name into the jobs.
    pub(super) fn resolve(&self, jobs: &mut [NewJob]) -> Result<(), Error> {
        if self.after.is_empty() && self.names.is_empty() {
            return Ok(());
        }
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (i, name) in &self.names {
            if let Some(first) = places.insert(name, *i) {
                let problem = format!("is {}, as that of jobs[{first}]; each needs its own", text::shown(name));
                return Err(Error::invalid(format!("jobs[{i}].local_name"), problem));
            }
        }
        let mut after_places = vec![Vec::new(); jobs.len()];
        for (i, names) in &self.after {
            let place = |(n, name): (usize, &String)| {
                places.get(name.as_str()).copied().ok_or_else(|| {
                    let problem = format!("is {}, which is no job's local_name in this request", text::shown(name));
                    Error::invalid(format!("jobs[{i}].after_local[{n}]"), problem)
                })
            };
            let mut those = names.iter().enumerate().map(place).collect::<Result<Vec<_>, _>>()?;
            those.sort_unstable();
            those.dedup();
            after_places[*i] = those;
        }
        if let Some(i) = in_cycle(&after_places) {
            let problem = "leads back to this job: they would wait for each other for ever";
            return Err(Error::invalid(format!("jobs[{i}].after_local"), problem));
        }
        for (i, those) in after_places.into_iter().enumerate() {
            for &place in &those {
                coordination_of(&mut jobs[place]).has_dependents = true;
            }
            if !those.is_empty() {
                coordination_of(&mut jobs[i]).after_places = those;
            }
        }
        Ok(())
    }
}

fn coordination_of(job: &mut NewJob) -> &mut Coordination {
    job.coordination.get_or_insert_default()
}

/// A job that waits for itself, if there is one: what is left when jobs without anything before them are taken
/// away, again and again (Kahn 1962).
fn in_cycle(after: &[Vec<usize>]) -> Option<usize> {
    let mut left: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); after.len()];
    for (i, those) in after.iter().enumerate() {
        those.iter().for_each(|&place| behind[place].push(i));
    }
    let mut free: Vec<usize> = (0..after.len()).filter(|&i| left[i] == 0).collect();
    while let Some(i) = free.pop() {
        for &next in &behind[i] {
            left[next] -= 1;
            if left[next] == 0 {
                free.push(next);
            }
        }
    }
    left.iter().position(|&n| n > 0)
}
