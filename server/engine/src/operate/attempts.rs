//! Lists the jobs of a task type with the most attempts, and the jobs that failed last.

use std::{
    cmp::Reverse,
    collections::{HashSet, VecDeque},
    time::Instant,
};

use howdah_core::{
    error::Error,
    job::{JobConditions, JobPage, JobState, JobView, Look, PagePosition, TypeId},
};

use super::{
    ListQuery, Operator,
    jobs::{LIST_BYTES, LOOKS_FOR},
};
use crate::store::{Attempted, FailedJob, FailuresArgs};

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
        let mut ahead: VecDeque<PagePosition> = STATES.into_iter().filter(of).map(PagePosition::first).collect();
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

impl Operator {
    /// Returns a page of the dead jobs and the jobs that wait for a retry, the newest failure first. The rank of a position is the
    /// time of the failure in µs.
    pub(super) async fn newest_failures(&self, type_id: Option<TypeId>, query: &ListQuery) -> Result<JobPage, Error> {
        let store = &self.context.store;
        let failures = FailuresArgs {
            type_id,
            state: query.state,
            error_group: query.error_group.as_deref(),
            before: query.from.map(|from| FailedJob { failed_us: from.rank, id: from.id }),
            at_most: query.page_size as i32,
        };
        let found = store.newest_failures(&failures).await?;
        let ids: Vec<i64> = found.iter().map(|job| job.id).collect();
        let mut shown = store.found_jobs(&ids, LIST_BYTES, query.payload, &JobConditions::default()).await?;
        let place = |job: &JobView| ids.iter().position(|id| *id == job.id).unwrap_or(ids.len());
        shown.jobs.sort_by_cached_key(place);
        // A page that ended at its limit of bytes goes on after its last job.
        let last = if shown.cut { shown.jobs.last().and_then(|job| found.get(place(job))) } else { found.last() };
        let is_full = found.len() == query.page_size || shown.cut;
        let state = query.state.unwrap_or(JobState::Dead);
        let next = last.filter(|_| is_full).map(|job| PagePosition { state, rank: job.failed_us, id: job.id });
        // A job may have changed its state or its type since it was found.
        let failed = |job: &JobView| match query.state {
            Some(state) => job.state == state,
            None => matches!(job.state, JobState::Dead | JobState::Scheduled),
        };
        let of_type = |job: &JobView| query.task_type.as_ref().is_none_or(|name| job.task_type == name.as_str());
        shown.jobs.retain(|job| failed(job) && of_type(job));
        Ok(JobPage { jobs: shown.jobs, next, ..JobPage::default() })
    }
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
