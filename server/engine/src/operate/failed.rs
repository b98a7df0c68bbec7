//! Operations on failed jobs: list them in error groups, retry and discard them.

use std::time::Duration;

use bytes::Bytes;
use howdah_core::{
    error::Error,
    job::{Chosen, ErrorGroup, JobState, PagePosition, Ready, TaskTypeName},
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
        match &query.selection {
            Selection::Ids(jobs) => {
                let payload = query.payload.as_deref();
                let args = RetryArgs { start: query.start, state: None, payload, failed: false };
                self.retry_batch(jobs, (&args, by), &mut answer).await?;
            }
            Selection::OfType(selection) => {
                let Some(type_id) = self.context.registry.find(&selection.task_type).await? else {
                    return Ok(answer);
                };
                let mut walk = Walk::new(self, type_id, selection, true, &RETRY_STATES).await?;
                while let Some((state, ids)) = walk.next().await? {
                    let args = RetryArgs { start: query.start, state: Some(state), payload: None, failed: true };
                    self.retry_batch(&ids.into(), (&args, by), &mut answer).await?;
                }
                answer.next = walk.rest();
            }
        }
        Ok(answer)
    }

    /// Retries these jobs, and wakes the brokers that can assign them to workers.
    async fn retry_batch(
        &self,
        jobs: &Chosen,
        (args, by): (&RetryArgs<'_>, &Actor),
        answer: &mut RetryAnswer,
    ) -> Result<(), Error> {
        let args = *args;
        for ids in jobs.ids.chunks(1_000) {
            let retry = |store: Store, ids: Vec<i64>| {
                let jobs = jobs.but(ids);
                async move { store.retry_jobs(&jobs, &args, by).await }
            };
            self.but_for_locked(ids.to_vec(), retry, |retried| self.retried(retried, answer)).await?;
        }
        Ok(())
    }

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
        match &selection {
            Selection::Ids(jobs) => {
                for ids in jobs.ids.chunks(1_000) {
                    self.discard_batch(jobs.but(ids.to_vec()), by, &mut discarded).await?;
                }
                Ok((discarded, None))
            }
            Selection::OfType(selection) => {
                let Some(type_id) = self.context.registry.find(&selection.task_type).await? else {
                    return Ok((discarded, None));
                };
                let mut walk = Walk::new(self, type_id, selection, true, &[JobState::Dead]).await?;
                while let Some((_, ids)) = walk.next().await? {
                    self.discard_batch(ids.into(), by, &mut discarded).await?;
                }
                Ok((discarded, walk.rest()))
            }
        }
    }

    async fn discard_batch(&self, jobs: Chosen, by: &Actor, discarded: &mut Vec<i64>) -> Result<(), Error> {
        let discard = |store: Store, ids: Vec<i64>| {
            let jobs = jobs.but(ids);
            async move { store.discard_jobs(&jobs, by).await }
        };
        let report = |(gone, woken): (Vec<i64>, Wakeups)| {
            self.context.dispatch.wakeups(&woken);
            discarded.extend(gone);
        };
        self.but_for_locked(jobs.ids.clone(), discard, report).await
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
