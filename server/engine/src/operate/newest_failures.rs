//! Lists the jobs that failed last.

use howdah_core::{
    error::Error,
    job::{JobConditions, JobPage, JobState, JobView, PagePosition, TypeId},
};

use super::{ListQuery, Operator, jobs::LIST_BYTES};
use crate::store::{FailedJob, FailuresArgs};

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
