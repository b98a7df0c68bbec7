//! Formats times and numbers in sentences.

use std::time::SystemTime;

pub(super) use howdah_core::durations::short;
use howdah_core::job::{Before, RelatedJob};

/// Formats a future time as `2026-11-23T10:00:00Z, in 3m 12s`.
pub(super) fn until(at: SystemTime, now: SystemTime) -> String {
    match at.duration_since(now) {
        Ok(left) => format!("{}, in {}", time(at), short(left)),
        Err(_) => time(at),
    }
}

/// Formats a past time as `2026-11-23T10:00:00Z, 3m 12s ago`.
pub(super) fn since(at: SystemTime, now: SystemTime) -> String {
    format!("{}, {} ago", time(at), short(now.duration_since(at).unwrap_or_default()))
}

/// Formats a time with a precision of seconds.
pub(super) fn time(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).map_or_else(|_| "a time far away".into(), |at| format!("{at:.0}"))
}

/// Formats the number of jobs that run before a job: `12 jobs go`, or `more than 10,000 jobs go`.
pub(super) fn go_first(before: Before) -> String {
    match before {
        Before { has_more: true, jobs } => format!("more than {jobs} jobs go"),
        Before { jobs: 1, .. } => "1 job goes".into(),
        Before { jobs, .. } => format!("{jobs} jobs go"),
    }
}

/// Returns `That job` for one job, else `Those jobs`.
pub(super) fn those(number: i64) -> &'static str {
    if number == 1 { "That job" } else { "Those jobs" }
}

/// Returns the singular or the plural of a verb for a number of things: `holds` or `hold`.
pub(super) fn verb(number: i64, of_one: &'static str, of_many: &'static str) -> &'static str {
    if number == 1 { of_one } else { of_many }
}

/// Formats a number of jobs: `1 job` or `12 jobs`.
pub(super) fn count(number: i64) -> String {
    format!("{number} {}", verb(number, "job", "jobs"))
}

/// Formats jobs with their states: `job 17 (ready)`, or `jobs 17 (ready), 18 and 19 (dead)`.
pub(super) fn jobs(jobs: &[RelatedJob]) -> String {
    let one = |job: &RelatedJob| match &job.known {
        Some((_, state)) => format!("{} ({})", job.id, state.name()),
        None => job.id.to_string(),
    };
    match jobs {
        [] => "other jobs".into(),
        [job] => format!("job {}", one(job)),
        [first @ .., last] => {
            format!("jobs {} and {}", first.iter().map(one).collect::<Vec<_>>().join(", "), one(last))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use howdah_core::job::JobState;

    #[test]
    fn jobs_are_listed_with_their_states_as_far_as_they_are_known() {
        let job = |id, known: Option<JobState>| RelatedJob { id, known: known.map(|state| ("t".into(), state)) };
        assert_eq!(jobs(&[job(1, None)]), "job 1");
        assert_eq!(
            jobs(&[job(1, Some(JobState::Dead)), job(2, None), job(3, Some(JobState::Ready))]),
            "jobs 1 (dead), 2 and 3 (ready)"
        );
    }
}
