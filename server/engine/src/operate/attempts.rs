//! Lists the jobs of a task type with the most attempts.

use std::{
    cmp::Reverse,
    collections::{HashSet, VecDeque},
    time::Instant,
};

use howdah_core::{
    error::Error,
    job::{JobConditions, JobPage, JobState, Look, PagePosition, TypeId},
};

use super::{
    ListQuery, Operator,
    jobs::{LIST_BYTES, LOOKS_FOR, start_of},
};
use crate::store::Attempted;

/// States whose jobs may have started, in the order in which a job passes through them. So a job that changes its state during
/// a scan is seen twice rather than missed.
const STATES: [JobState; 5] =
    [JobState::Waiting, JobState::Scheduled, JobState::Ready, JobState::Leased, JobState::Dead];

impl Operator {
    /// Returns a page of the jobs with the most attempts. Scans the states in turn, one step at a time, until all are scanned
    /// or the time is over. So a state with many jobs does not hide the jobs of other states.
    pub(super) async fn most_attempts(&self, type_id: Option<TypeId>, query: &ListQuery) -> Result<JobPage, Error> {
        let (Some(type_id), Some(name)) = (type_id, &query.task_type) else { return Ok(JobPage::default()) };
        let store = &self.context.store;
        // One more job than fits into the page, to detect whether there are more.
        let most = query.page_size + 1;
        let (mut found, mut look) = (Vec::new(), Look::default());
        let of = |state: &JobState| query.state.is_none_or(|only| only == *state);
        let mut ahead: VecDeque<PagePosition> = STATES.into_iter().filter(of).map(start_of).collect();
        let (mut first_steps, begun) = (ahead.len(), Instant::now());
        while let Some(from) = ahead.pop_front() {
            if first_steps == 0 && begun.elapsed() > LOOKS_FOR {
                look.partial = true;
                break;
            }
            first_steps = first_steps.saturating_sub(1);
            let step = store.most_attempts(type_id, from, most as i32).await?;
            look.scanned_count += step.scanned_count;
            ahead.extend(step.next);
            found.extend(step.jobs);
            keep_most(&mut found, most);
        }
        look.has_more = found.len() > query.page_size;
        let ids: Vec<i64> = found.iter().take(query.page_size).map(|job| job.id).collect();
        let shown = store.found_jobs(&ids, LIST_BYTES, query.payload, &JobConditions::default()).await?;
        look.has_more |= shown.cut;
        // The job may have changed its state, its type or its attempts since the scan.
        let mut jobs = shown.jobs;
        jobs.retain(|job| job.task_type == name.as_str() && !job.state.is_finished() && of(&job.state));
        jobs.sort_by_key(|job| (Reverse(job.attempt), job.id));
        Ok(JobPage { jobs, next: None, look })
    }
}

/// Keeps the jobs with the most attempts, without duplicates: a job that changes its state between two steps is found by both.
fn keep_most(found: &mut Vec<Attempted>, most: usize) {
    found.sort_by_key(|job| (Reverse(job.attempt), job.id));
    let mut seen = HashSet::new();
    found.retain(|job| seen.insert(job.id));
    found.truncate(most);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_was_seen_twice_is_kept_once_with_its_last_attempt() {
        let job = |attempt, id| Attempted { attempt, id };
        let mut found = vec![job(1, 9), job(3, 4), job(2, 7), job(3, 2), job(2, 4)];
        keep_most(&mut found, 3);
        assert_eq!(found, [job(3, 2), job(3, 4), job(2, 7)]);
    }
}
