//! Explanations of scheduled jobs.

use howdah_core::job::Reason;
use howdah_proto::v1::ReasonKind;

use super::{if_paused, text};
use crate::store::JobFacts;

pub(super) fn reasons(job: &JobFacts) -> Vec<Reason> {
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
