//! Runs finished jobs again: enqueues copies of them as new jobs.

use std::{cmp::Reverse, collections::HashMap};

use howdah_core::{
    error::Error,
    job::{Enqueued, JobView, NewJob, RelatedJob, RequestKey},
};

use super::Operator;
use crate::{
    intake::{Resolved, repeat, request_forgotten, resolve},
    store::{Actor, EndedJobs, KeyedJob, LockWait, RequestColumns, Store, StoreError, StoredCoordinated},
};

/// Maximum number of bytes of finished jobs that are read at once, besides the first job.
const READ: i64 = 2 << 20;

/// A copy of a finished job, which is to be stored as a new job.
pub struct Rerun {
    /// Id of the finished job.
    pub old_id: i64,
    pub job: NewJob,
    /// Request key of this job, if the call has one.
    pub request: Option<RequestKey>,
}

/// Result of running one finished job again.
#[derive(Debug)]
pub enum Reran {
    /// The copy was stored, by this call or by an earlier one with the same request key; or another job holds the key.
    Enqueued(Enqueued),
    /// The settings of the task type do not allow the copy, for this reason.
    Refused(String),
}

/// A copy with the settings of its task type, and its request key.
type Prepared = (Resolved, Option<RequestKey>);

impl Operator {
    /// Returns the task types and states of jobs. A job that the database does not contain has neither.
    pub async fn states_of(&self, ids: &[i64]) -> Result<Vec<RelatedJob>, Error> {
        Ok(self.context.store.states_of_jobs(ids).await?)
    }

    /// Returns the finished jobs among `ids`, as they were when they last ended: as many as fit into memory, and whether there
    /// are more.
    pub async fn finished_jobs(&self, ids: &[i64]) -> Result<(Vec<JobView>, bool), Error> {
        let EndedJobs { mut jobs, cut, .. } = self.context.store.ended_jobs(ids, READ).await?;
        jobs.sort_unstable_by_key(|job| (job.id, Reverse(job.finished)));
        jobs.dedup_by_key(|job| job.id);
        Ok((jobs, cut))
    }

    /// Stores the copies of finished jobs. Returns the result for each old id.
    pub async fn rerun_jobs(&self, reruns: Vec<Rerun>, by: &Actor) -> Result<Vec<(i64, Reran)>, Error> {
        let mut results = Vec::with_capacity(reruns.len());
        let mut copies: HashMap<i64, Prepared> = HashMap::with_capacity(reruns.len());
        let mut ids = Vec::with_capacity(reruns.len());
        for Rerun { old_id, job, request } in reruns {
            // Resolves each job alone, so that a job that its task type refuses does not fail the others.
            match resolve(&self.context.registry, vec![job], LockWait::Long, by.name()).await {
                Ok((resolved, _)) => {
                    ids.push(old_id);
                    copies.extend(resolved.into_iter().map(|resolved| (old_id, (resolved, request.clone()))));
                }
                Err(Error::Invalid { field, problem }) => {
                    let field = field.strip_prefix("jobs[0].").unwrap_or(&field);
                    results.push((old_id, Reran::Refused(format!("{field} {problem}"))));
                }
                Err(error) => return Err(error),
            }
        }
        let mut repeated = Vec::new();
        let store_copies = |store: Store, ids: Vec<i64>| {
            let copies = &copies;
            async move {
                let stored = store_some(&store, &ids, copies, by).await?;
                Ok((ids, stored))
            }
        };
        let report = |(ids, stored): (Vec<i64>, StoredCoordinated)| {
            let new = stored.jobs.iter().flatten().filter(|job| job.is_new()).count();
            self.context.metrics.enqueued.inc_by(new as u64);
            self.context.dispatch.wakeups(&stored.wakeups);
            for (old_id, job) in ids.into_iter().zip(stored.jobs) {
                match job {
                    Some(job) => results.push((old_id, Reran::Enqueued(job))),
                    None => repeated.push(old_id),
                }
            }
        };
        self.but_for_locked(ids, store_copies, report).await?;
        results.extend(self.first_results(&repeated, &copies).await?);
        Ok(results)
    }

    /// Returns the results of an earlier call with the same request key.
    async fn first_results(&self, ids: &[i64], copies: &HashMap<i64, Prepared>) -> Result<Vec<(i64, Reran)>, Error> {
        let requests: Vec<(i64, &RequestKey)> =
            ids.iter().filter_map(|id| Some((*id, copies.get(id)?.1.as_ref()?))).collect();
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<&str> = requests.iter().map(|(_, request)| request.key.as_str()).collect();
        let stored = self.context.store.repeated_requests(&keys).await?;
        let result = |(old_id, request): (i64, &RequestKey)| {
            let first = repeat(request, &stored).transpose()?.and_then(|jobs| jobs.first().copied());
            Ok((old_id, Reran::Enqueued(first.ok_or_else(request_forgotten)?)))
        };
        requests.into_iter().map(result).collect()
    }
}

async fn store_some(
    store: &Store,
    ids: &[i64],
    copies: &HashMap<i64, Prepared>,
    by: &Actor,
) -> Result<StoredCoordinated, StoreError> {
    let mut requests = RequestColumns::default();
    let mut jobs = Vec::with_capacity(ids.len());
    for (request_no, (resolved, request)) in (0..).zip(ids.iter().filter_map(|id| copies.get(id))) {
        jobs.push(KeyedJob { plain: resolved.as_plain(), request_no });
        requests.push(request_no, request.as_ref());
    }
    store.rerun_jobs(&jobs, &requests, by).await
}
