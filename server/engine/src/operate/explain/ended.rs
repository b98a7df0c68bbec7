//! Explanations of running and ended jobs.

use std::time::SystemTime;

use howdah_core::job::{Explanation, JobState, JobView, Reason, RelatedJob};
use howdah_proto::v1::ReasonKind;

use super::text;
use crate::store::{Holder, JobFacts, Undone};

/// Returns the reason why a leased job is not finished: it runs, or its broker is lost.
pub(super) fn running(job: &JobFacts, holder: Option<Holder>) -> Reason {
    let broker = job.broker.clone().unwrap_or_default();
    let since = job.leased_at.map_or_else(String::new, |at| format!(" since {}", text::since(at, job.now)));
    let attempt = format!("attempt {} of {}", job.attempt, job.max_attempts);
    let reason = Reason { since: job.leased_at, until: job.deadline, broker: broker.clone(), ..Reason::default() };
    let deadline = job.deadline.map(|at| text::until(at, job.now));
    if job.broker_gone {
        let name = if broker.is_empty() { String::new() } else { format!(" {broker}") };
        return Reason {
            kind: ReasonKind::BrokerGone,
            text: format!("The broker{name} is lost; one of its workers held the job{since}, as {attempt}."),
            remedy: "Another broker makes the job ready again within seconds.".into(),
            ..reason
        };
    }
    let is_away = holder.as_ref().is_some_and(|holder| !holder.is_connected);
    let worker = holder.map(|holder| holder.worker_id);
    let holder = match (&worker, job.broker.is_some()) {
        (Some(worker), _) if is_away => {
            format!("Worker {worker}, which is disconnected from broker {broker}, has held the job")
        }
        (Some(worker), _) => format!("Worker {worker} at broker {broker} has held the job"),
        (None, true) => format!("A worker at broker {broker} has held the job"),
        (None, false) => "A program that called PullJobs has held the job".into(),
    };
    let (ends, remedy) = match deadline {
        _ if is_away => (
            String::new(),
            "Nothing to do: if the worker does not reconnect within the lease time, another worker gets the job.",
        ),
        Some(deadline) => (
            format!(", until {deadline} at the latest"),
            "Nothing to do: the attempt ends when the worker settles it, or at its deadline.",
        ),
        None => (
            String::new(),
            "Nothing to do: the attempt has no deadline, and ends when the worker settles it or disconnects for good.",
        ),
    };
    Reason {
        kind: ReasonKind::Running,
        text: format!("{holder}{since}, as {attempt}{ends}."),
        remedy: remedy.into(),
        worker: worker.unwrap_or_default(),
        ..reason
    }
}

/// Returns the explanation of a finished job that is only in the archive.
pub(super) fn archived(job: JobView) -> Explanation {
    // The clock of this machine is precise enough for the approximate age that the text shows.
    let reason = finished(job.state, job.finished, SystemTime::now());
    let error = job.failures.last().map(|failure| failure.error.clone()).unwrap_or_default();
    let reason = Reason { text: format!("{} The job is in the archive.", reason.text), error, ..reason };
    Explanation {
        id: job.id,
        task_type: job.task_type,
        state: job.state,
        reasons: vec![reason],
        before: None,
        expected_in: None,
        settled_per_minute: 0.0,
    }
}

/// Returns the reasons why a job is dead or finished.
pub(super) fn reasons(job: &JobFacts, key_holder: Vec<RelatedJob>) -> Vec<Reason> {
    let error = job.error.clone().unwrap_or_default();
    let mut ended = match job.state {
        JobState::Dead => dead(job),
        state => finished(state, job.finished, job.now),
    };
    if let Some((bulk, why)) = &job.ended_by {
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        ended.text = format!("{} Bulk operation {bulk} ended the job{why}.", ended.text);
        ended.remedy = format!("To undo this, run `howdah bulk start undo {bulk}`.");
    }
    let held = (job.state == JobState::Dead && !key_holder.is_empty()).then(|| Reason {
        kind: ReasonKind::DeadKeyHeld,
        text: format!("The job cannot be retried now: {} holds its key.", text::jobs(&key_holder)),
        remedy: "Wait until that job has ended.".into(),
        jobs: key_holder,
        ..Reason::default()
    });
    std::iter::once(Reason { error, ..ended }).chain(held).collect()
}

/// Returns a sentence about a bulk operation that had ended the job and was undone.
pub(super) fn undone(undone: &Undone, now: SystemTime) -> String {
    let ended = match undone.operation.as_deref() {
        Some("cancel") => "cancelled",
        Some("discard") => "discarded",
        // The row of the bulk operation is deleted, so its kind is unknown.
        _ => "ended",
    };
    let Undone { bulk, .. } = undone;
    let [at, back] = [undone.ended, undone.undone].map(|at| text::since(at, now));
    let by = match &undone.by {
        Some((undo, who)) if who.is_empty() => format!(" by bulk operation {undo}"),
        Some((undo, who)) => format!(" by bulk operation {undo} of {who}"),
        None => String::new(),
    };
    format!("Bulk operation {bulk} had {ended} the job at {at}; that was undone at {back}{by}.")
}

fn dead(job: &JobFacts) -> Reason {
    let why = match (job.attempt, job.max_attempts) {
        (1.., 1) => "its only attempt has failed".to_owned(),
        (attempt, most) if attempt >= most => format!("all {most} attempts have failed"),
        (attempt, most) => format!("attempt {attempt} of {most} failed for good"),
    };
    Reason {
        kind: ReasonKind::Dead,
        text: format!("The job is dead{}: {why}.", since(job.finished, job.now)),
        remedy: "Retry the job, which gives it all of its attempts again, or discard it.".into(),
        since: job.finished,
        ..Reason::default()
    }
}

fn since(at: Option<SystemTime>, now: SystemTime) -> String {
    at.map_or_else(String::new, |at| format!(" since {}", text::since(at, now)))
}

fn finished(state: JobState, at: Option<SystemTime>, now: SystemTime) -> Reason {
    let when = at.map_or_else(String::new, |at| format!(" at {}", text::since(at, now)));
    let (kind, text) = match state {
        JobState::Succeeded => (ReasonKind::Succeeded, format!("The job succeeded{when}.")),
        JobState::Cancelled => (ReasonKind::Cancelled, format!("The job was cancelled{when}.")),
        JobState::Expired => (ReasonKind::Expired, format!("The job expired{when}: no worker had started it.")),
        _ => (
            ReasonKind::Discarded,
            format!("The job was discarded{when}: it was dead, and an operator or the setting dead_days discarded it."),
        ),
    };
    Reason { kind, text, since: at, ..Reason::default() }
}
