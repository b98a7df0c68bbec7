//! Get, list and cancel jobs.

use std::time::{Duration, Instant};

use howdah_core::{
    error::Error,
    job::{Chosen, DependencyResult, JobConditions, JobPage, JobState, JobView, Lease, PagePosition, TaskTypeName},
};

use super::{Operator, Selection, selection::Walk};
use crate::{
    store::{Actor, CancelledJob, Dependent, ListArgs, Store, Wakeups},
    wake::Loss,
};

/// Arguments of `ListJobs`.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Type of the jobs; `None` for jobs of all types.
    pub task_type: Option<TaskTypeName>,
    /// State of the jobs; `None` for any state.
    pub state: Option<JobState>,
    /// Page size.
    pub page_size: usize,
    /// Position at which the page starts.
    pub from: Option<PagePosition>,
    /// Whether to return payloads and results.
    pub payload: bool,
    /// If set, lists only dead jobs of this error group.
    pub error_group: Option<String>,
    /// Further conditions on the jobs.
    pub conditions: JobConditions,
    /// Order of the jobs.
    pub order: ListOrder,
}

/// Order of a list of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOrder {
    /// Ready jobs of a type as they will run, finished jobs newest first, others by id.
    Run,
    /// Most attempts first; lists only jobs that have started and are not finished.
    Attempts,
    /// Newest failure first; lists only dead jobs, and scheduled jobs that have failed.
    Failure,
}

/// Maximum number of passes over the jobs of a cancel. Later passes find jobs that have changed their state meanwhile.
const CANCEL_LOOKS: usize = 5;
/// Order of the states in a cancel by type. Jobs usually pass through the states in this order, so few are missed.
pub const CANCEL_STATES: [JobState; 5] =
    [JobState::Scheduled, JobState::Waiting, JobState::Ready, JobState::Leased, JobState::Dead];
/// Approximate maximum size of a page of jobs, in bytes: generated clients accept messages of 4 MiB.
pub const LIST_BYTES: i64 = 3 << 20;
/// Maximum number of statements to read one page of jobs.
const LIST_STATEMENTS: usize = 16;
/// Time limit of a list that scans jobs of other task types, in states without an index by type. The caller waits meanwhile.
pub(super) const LOOKS_FOR: Duration = Duration::from_millis(80);

/// Order of the states in `ListJobs`. `Succeeded` stands for all finished states.
const LIST_ORDER: [JobState; 6] =
    [JobState::Leased, JobState::Ready, JobState::Scheduled, JobState::Waiting, JobState::Dead, JobState::Succeeded];

impl Operator {
    /// Returns a job by id, from the database or from the archive.
    pub async fn get_job(&self, id: i64) -> Result<Option<JobView>, Error> {
        // One statement is enough, even for a job that moves from one table to another: the job is in exactly one table of the
        // statement's snapshot.
        let Some(job) = self.context.store.get_job(id).await? else { return self.archived_job(id).await };
        let worker = match job.state {
            JobState::Leased => self.holder_of(id).await?.map(|holder| holder.worker_id),
            _ => None,
        };
        Ok(Some(JobView { worker, ..job }))
    }

    /// Returns the task type and the options of a job that has dependencies, in any state.
    pub async fn dependent(&self, id: i64) -> Result<Option<Dependent>, Error> {
        Ok(self.context.store.dependent(id).await?)
    }

    /// Returns the results of these dependencies, as many as fit into a page.
    pub async fn results_of(&self, ids: &[i64]) -> Result<Vec<DependencyResult>, Error> {
        Ok(self.context.store.results_of(ids).await?)
    }

    /// Returns a page of a type's jobs.
    pub async fn list_jobs(&self, query: ListQuery) -> Result<JobPage, Error> {
        let type_id = match &query.task_type {
            None => None,
            Some(name) => match self.context.registry.find(name).await? {
                None => return Ok(JobPage::default()),
                found => found,
            },
        };
        match query.order {
            ListOrder::Attempts => return self.most_attempts(type_id, &query).await,
            ListOrder::Failure => return self.newest_failures(type_id, &query).await,
            ListOrder::Run => {}
        }
        let held = self.held_by_worker_of(&query.conditions, type_id).await?;
        let first = query.state.unwrap_or(LIST_ORDER[0]);
        let mut at = Some(query.from.unwrap_or(PagePosition::first(first)));
        let mut page = JobPage::default();
        let mut bytes_left = LIST_BYTES;
        let begun = Instant::now();
        for _ in 0..LIST_STATEMENTS {
            let Some(from) = at else { break };
            let list = ListArgs {
                from,
                any_finished: query.state.is_none(),
                at_most: (query.page_size - page.jobs.len()) as i32,
                payload: query.payload,
                bytes: bytes_left,
                error_group: query.error_group.as_deref(),
                conditions: &query.conditions,
                held: held.as_deref(),
            };
            let listed = self.context.store.list_jobs(type_id, &list).await?;
            at = match (listed.jobs.last(), listed.last_scanned) {
                (Some((job, rank)), _) if listed.cut => {
                    Some(PagePosition { state: from.state, rank: *rank, id: job.id })
                }
                (_, Some((rank, id))) => Some(PagePosition { rank, id, ..from }),
                _ if query.state.is_some() => None,
                _ => PagePosition::after(from.state, &LIST_ORDER),
            };
            page.jobs.extend(listed.jobs.into_iter().map(|(job, _)| job));
            bytes_left -= listed.bytes;
            let is_late = listed.last_scanned.is_some() && begun.elapsed() > LOOKS_FOR;
            if listed.cut || bytes_left <= 0 || is_late {
                break;
            }
        }
        page.next = at;
        Ok(page)
    }

    /// Cancels unfinished jobs, and tells their workers. Returns the ids of the cancelled jobs, and the position at which the
    /// next call continues.
    pub async fn cancel_jobs(
        &self,
        selection: Selection,
        by: &Actor,
    ) -> Result<(Vec<i64>, Option<PagePosition>), Error> {
        let mut gone = Vec::new();
        let mut rest = None;
        match selection {
            Selection::Ids(jobs) => gone = self.cancel_ids(jobs, by).await?,
            Selection::OfType(selection) => {
                // Only failed jobs have an error group.
                let failed = selection.error_group.is_some();
                let states = if failed { &super::RETRY_STATES[..] } else { &CANCEL_STATES };
                let mut walk = Walk::of_type(self, &selection, failed, states).await?;
                while let Some((state, jobs)) = walk.next().await? {
                    gone.extend(self.cancel_in(jobs, state, by).await?);
                }
                rest = walk.rest();
            }
        }
        let mut cancelled: Vec<i64> = gone.iter().map(|job| job.id).collect();
        cancelled.sort_unstable();
        Ok((cancelled, rest))
    }

    /// Cancels jobs by id, in any unfinished state.
    async fn cancel_ids(&self, chosen: Chosen, by: &Actor) -> Result<Vec<CancelledJob>, Error> {
        let mut left = chosen.ids.clone();
        let mut cancelled = Vec::new();
        for _ in 0..CANCEL_LOOKS {
            let gone = self.cancel_in(chosen.but(left.clone()), None, by).await?;
            let found = gone.len();
            cancelled.extend(gone);
            if found == left.len() {
                break;
            }
            left = self.context.store.still_live(&left).await?;
            if left.is_empty() {
                break;
            }
        }
        Ok(cancelled)
    }

    /// Cancels the chosen jobs that are in the state `only` (`None`: in any unfinished state). Returns the cancelled jobs.
    async fn cancel_in(&self, chosen: Chosen, only: Option<JobState>, by: &Actor) -> Result<Vec<CancelledJob>, Error> {
        let mut gone = Vec::new();
        let cancel = |store: Store, ids: Vec<i64>| {
            let jobs = chosen.but(ids);
            async move { store.cancel(&jobs, only, by).await }
        };
        let report = |(cancelled, woken): (Vec<CancelledJob>, Wakeups)| {
            self.context.dispatch.wakeups(&woken);
            self.notify_workers(&cancelled);
            gone.extend(cancelled);
        };
        self.but_for_locked(chosen.ids.clone(), cancel, report).await?;
        Ok(gone)
    }

    /// Tells the workers that hold these jobs to stop.
    pub(super) fn notify_workers(&self, cancelled: &[CancelledJob]) {
        let lease = |job: &CancelledJob| Some((Lease { id: job.id, token: job.token? }, job.broker_id?));
        self.context.tell_workers(cancelled.iter().filter_map(lease), Loss::Cancelled);
    }
}
