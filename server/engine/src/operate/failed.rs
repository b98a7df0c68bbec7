//! Operations on failed jobs: list them in error groups, retry and discard them.

use std::time::Duration;

use bytes::Bytes;
use howdah_core::{
    error::Error,
    job::{ErrorGroup, JobState, PagePosition, Ready, TaskTypeName},
};

use super::{Operator, Selection, selection::Walk};
use crate::store::{Actor, Retried, RetryArgs, RetryStart, Store, Wakeups};

/// States of failed jobs. Scheduled jobs come first, because a dead job that is retried at a later time becomes scheduled.
pub const RETRY_STATES: [JobState; 2] = [JobState::Scheduled, JobState::Dead];

/// Arguments of a retry.
#[derive(Clone, Debug)]
pub struct RetryQuery {
    /// The jobs.
    pub selection: Selection,
    /// Time at which the retried jobs run.
    pub start: RetryStart,
    /// New payload of the job, if a single job is retried.
    pub payload: Option<Bytes>,
}

/// Result of a retry.
#[derive(Debug, Default)]
pub struct RetryAnswer {
    /// Ids of the retried jobs.
    pub retried: Vec<i64>,
    /// Ids of jobs that stay dead, because other jobs hold their keys.
    pub key_held: Vec<i64>,
    /// Ids of jobs that were cancelled because a retried job failed, and that now wait for it again.
    pub revived: Vec<i64>,
    /// Position at which the next call continues.
    pub next: Option<PagePosition>,
}

impl Operator {
    /// Makes scheduled and dead jobs ready now or at a given time.
    pub async fn retry_jobs(&self, query: RetryQuery, by: &Actor) -> Result<RetryAnswer, Error> {
        let mut answer = RetryAnswer::default();
        let mut walk = Walk::new(self, &query.selection, true, &RETRY_STATES).await?;
        while let Some((state, jobs)) = walk.next().await? {
            let payload = query.payload.as_deref();
            let args = RetryArgs { start: query.start, state, payload, failed: state.is_some() };
            let retry = |store: Store, ids: Vec<i64>| {
                let jobs = jobs.but(ids);
                async move { store.retry_jobs(&jobs, &args, by).await }
            };
            self.but_for_locked(jobs.ids.clone(), retry, |retried| self.retried(retried, &mut answer)).await?;
        }
        answer.next = walk.rest();
        Ok(answer)
    }

    /// Reports retried jobs to dispatch, and adds them to the answer.
    pub(super) fn retried(&self, (jobs, revived): (Vec<Retried>, Vec<i64>), answer: &mut RetryAnswer) {
        answer.revived.extend(revived);
        let (held, retried): (Vec<Retried>, Vec<Retried>) = jobs.into_iter().partition(|job| job.key_held);
        let ready = |job: &Retried| Some(Ready { type_id: job.type_id, lowest_rank: job.rank?, jobs: 1 });
        self.context.dispatch.ready(retried.iter().filter_map(ready));
        if let Some(ms) = retried.iter().filter(|job| job.rank.is_none()).map(|job| job.due_in_ms).min() {
            self.context.wake.due_in(Duration::from_millis(ms.max(0) as u64));
        }
        answer.retried.extend(retried.iter().map(|job| job.id));
        answer.key_held.extend(held.iter().map(|job| job.id));
    }

    /// Discards dead jobs. Returns their ids, and the position at which the next call continues.
    pub async fn discard_jobs(
        &self,
        selection: Selection,
        by: &Actor,
    ) -> Result<(Vec<i64>, Option<PagePosition>), Error> {
        let mut discarded = Vec::new();
        let mut walk = Walk::new(self, &selection, true, &[JobState::Dead]).await?;
        while let Some((_, jobs)) = walk.next().await? {
            let discard = |store: Store, ids: Vec<i64>| {
                let jobs = jobs.but(ids);
                async move { store.discard_jobs(&jobs, by).await }
            };
            let report = |(gone, woken): (Vec<i64>, Wakeups)| {
                self.context.dispatch.wakeups(&woken);
                discarded.extend(gone);
            };
            self.but_for_locked(jobs.ids.clone(), discard, report).await?;
        }
        Ok((discarded, walk.rest()))
    }

    /// Returns the error groups of failed jobs, largest first, and whether some jobs were not counted.
    pub async fn error_groups(
        &self,
        task_type: Option<TaskTypeName>,
        at_most: usize,
    ) -> Result<(Vec<ErrorGroup>, bool), Error> {
        let type_id = match &task_type {
            None => None,
            Some(name) => match self.context.registry.find(name).await? {
                None => return Ok((Vec::new(), false)),
                found => found,
            },
        };
        Ok(self.context.store.error_groups(type_id, at_most as i32).await?)
    }
}
