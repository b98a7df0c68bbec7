//! Explanations of jobs that wait for their start time, for other jobs, or because their limit key has reached a limit.

use howdah_core::job::{JobState, Reason, RelatedJob};
use howdah_proto::v1::ReasonKind;

use super::{MOST_RELATED, before, if_paused, ready::one_of, text};
use crate::store::{JobFacts, LimitKeyFacts};

/// Returns the reasons why a job waits for other jobs: the holder of its key, or its dependencies.
pub(super) fn for_jobs(job: &JobFacts, related: Vec<RelatedJob>) -> Vec<Reason> {
    let is_behind = |related: &RelatedJob| job.queued_behind == Some(related.id);
    let (holder, after): (Vec<_>, Vec<_>) = related.into_iter().partition(is_behind);
    let mut reasons = Vec::new();
    if !holder.is_empty() {
        reasons.push(Reason {
            kind: ReasonKind::KeyHeld,
            text: format!("The job runs after {}, which holds its key.", text::jobs(&holder)),
            remedy: "Wait until that job has ended.".into(),
            jobs: holder,
            ..Reason::default()
        });
    }
    if !after.is_empty() {
        let dead = after.iter().any(|job| matches!(job.known, Some((_, JobState::Dead))));
        let more = if job.after.len() > after.len() { ", and others" } else { "" };
        reasons.push(Reason {
            kind: ReasonKind::Dependency,
            text: format!("The job depends on {}{more}.", text::jobs(&after)),
            remedy: remedy_after(&job.after, dead),
            jobs: after,
            ..Reason::default()
        });
    }
    if reasons.is_empty() {
        reasons.push(Reason {
            kind: ReasonKind::Due,
            text: "The job no longer waits for other jobs: it becomes ready in a moment.".into(),
            ..Reason::default()
        });
    }
    reasons.into_iter().chain(if_paused(job)).collect()
}

/// Returns the remedy for a job that waits for these dependencies.
fn remedy_after(after: &[i64], dead: bool) -> String {
    let retried = match (dead, after.len()) {
        (false, _) => "",
        (true, 1) => ": retry or discard it",
        (true, _) => ": retry or discard the dead ones",
    };
    format!("{} must succeed{retried}.", text::those(after.len() as i64))
}

/// Returns a reason if ready jobs use up the gap or the rate limit of the limit key. They count as if they started now, so that
/// no more jobs become ready than may start.
fn ready_first(job: &JobFacts, key: &str, limit: &LimitKeyFacts) -> Option<Reason> {
    let ready = limit.slots.iter().filter(|(_, state)| *state == JobState::Ready);
    let ready: Vec<RelatedJob> =
        ready.map(|&(id, state)| RelatedJob { id, known: Some((job.task_type.clone(), state)) }).collect();
    let used = ready.len() as i64;
    let is_first = |most: i64| used >= most && used > 0;
    let (kind, most, why) = match (job.key_min_gap_ms, job.key_rate_burst.map(i64::from)) {
        (Some(_), _) if is_first(1) => (ReasonKind::LimitKeyGap, 1, "a gap after each start"),
        (_, Some(burst)) if is_first(burst) => (ReasonKind::LimitKeyRate, burst, "a rate limit"),
        _ => return None,
    };
    let jobs: Vec<RelatedJob> = ready.into_iter().take(MOST_RELATED).collect();
    Some(Reason {
        kind,
        text: format!("The limit key {key:?} of the job has {why}, and {} must start first.", text::jobs(&jobs)),
        remedy: "Wait until a worker takes the ready jobs.".into(),
        jobs,
        key: key.to_owned(),
        limit: most as f64,
        used,
        ..Reason::default()
    })
}

/// Returns a reason if other jobs hold all slots of the limit key.
fn full(job: &JobFacts, key: &str, limit: &LimitKeyFacts) -> Option<Reason> {
    let used = limit.slots.len() as i64;
    let most = limit.max_running.filter(|&most| used >= i64::from(most))?;
    let slots = limit.slots.iter().take(MOST_RELATED);
    let jobs: Vec<RelatedJob> =
        slots.map(|&(id, state)| RelatedJob { id, known: Some((job.task_type.clone(), state)) }).collect();
    let (has, slots) = if used == 1 { ("has", "the slot") } else { ("have", "the slots") };
    let named = text::jobs(&jobs);
    let (kind, text, remedy) = if job.key_gap_from_end {
        let text = format!("The limit key {key:?} of the job has a gap after each end, and {named} must end first.");
        (ReasonKind::LimitKeyGap, text, "Wait until the gap after that end is over.".to_owned())
    } else {
        let strict = if job.key_strict { ", in strict order" } else { "" };
        let text =
            format!("Of the limit key {key:?} of the job, {most} may run at once{strict}: {named} {has} {slots}.");
        (ReasonKind::LimitKeyFull, text, format!("{} must end, or the limit must be raised.", one_of(used)))
    };
    let key = key.to_owned();
    Some(Reason { kind, text, remedy, limit: f64::from(most), used, jobs, key, ..Reason::default() })
}

/// Returns the reasons why a job waits for its limit key: a limit is reached, or the key is paused.
pub(super) fn for_limit(job: &JobFacts, key: &str, limit: &LimitKeyFacts) -> Vec<Reason> {
    let base = || Reason { key: key.to_owned(), ..Reason::default() };
    let mut reasons = Vec::new();
    if limit.paused {
        let until = limit.paused_until.map_or_else(String::new, |at| format!(" until {}", text::until(at, job.now)));
        reasons.push(Reason {
            kind: ReasonKind::LimitKeyPaused,
            text: format!("The limit key {key:?} of the job is paused{until}."),
            remedy: "Resume the limit key.".into(),
            until: limit.paused_until,
            ..base()
        });
    }
    reasons.extend(full(job, key, limit));
    let after = if job.key_gap_from_end { "end" } else { "start" };
    reasons.extend(limit.gap_over.filter(|&over| over > job.now).map(|over| Reason {
        kind: ReasonKind::LimitKeyGap,
        text: format!(
            "The gap after the last {after} of the limit key {key:?} lasts until {}.",
            text::until(over, job.now)
        ),
        remedy: "Wait until then.".into(),
        until: Some(over),
        ..base()
    }));
    reasons.extend(limit.next_token.filter(|&next| next > job.now).map(|next| Reason {
        kind: ReasonKind::LimitKeyRate,
        text: format!(
            "The rate limit of the limit key {key:?} allows the next start at {}.",
            text::until(next, job.now)
        ),
        remedy: "Wait until then, or raise the rate.".into(),
        until: Some(next),
        limit: job.key_rate_per_s.unwrap_or_default(),
        ..base()
    }));
    if !reasons.iter().any(|reason| matches!(reason.kind, ReasonKind::LimitKeyGap | ReasonKind::LimitKeyRate)) {
        reasons.extend(ready_first(job, key, limit));
    }
    if limit.before > 0 {
        reasons.push(Reason {
            kind: ReasonKind::LimitKeyOrder,
            text: format!("At the limit key {key:?}, {} before this one.", text::go_first(before(limit.before))),
            remedy: format!("{} must start.", text::those(limit.before)),
            ..base()
        });
    }
    if reasons.is_empty() {
        reasons.push(Reason {
            kind: ReasonKind::Due,
            text: format!("The limit key {key:?} has a free slot: the job becomes ready in a moment."),
            ..base()
        });
    }
    reasons.into_iter().chain(if_paused(job)).collect()
}

/// Returns the reasons why a scheduled job does not run.
pub(super) fn for_time(job: &JobFacts) -> Vec<Reason> {
    let until = job.run_at.map_or_else(String::new, |at| text::until(at, job.now));
    let is_due = job.run_at.is_none_or(|at| at <= job.now);
    let has_run = job.leased_at.is_some() && job.attempt > 0;
    let (kind, text, remedy) = match () {
        () if is_due => {
            (ReasonKind::Due, "The start time of the job has come: it becomes ready in a moment.".to_owned(), "")
        }
        () if has_run && job.failed_last => {
            let text = format!(
                "Attempt {} of {} failed; the next attempt may start at {until}.",
                job.attempt, job.max_attempts
            );
            (ReasonKind::BackingOff, text, "Wait until then, or retry the job, which makes it ready now.")
        }
        () if job.leased_at.is_some() => {
            let text = format!("A worker snoozed the job until {until}.");
            (ReasonKind::Snoozed, text, "Wait until then, or retry the job, which makes it ready now.")
        }
        () => {
            let text = format!("The job is delayed until {until}.");
            (ReasonKind::Delayed, text, "Wait until then, or retry the job, which makes it ready now.")
        }
    };
    let error = job.error.clone().unwrap_or_default();
    let reason = Reason { kind, text, remedy: remedy.into(), until: job.run_at, error, ..Reason::default() };
    std::iter::once(reason).chain(if_paused(job)).collect()
}
