//! Priority changes of unfinished jobs.

use std::collections::HashMap;

use howdah_core::{
    error::Error,
    job::{Chosen, JobState, PagePosition, TypeId},
};

use super::{Operator, Selection, selection::Walk};
use crate::{
    maintain::rerank,
    store::{self, Actor, Store},
};

/// Maximum number of passes over the jobs. Later passes find jobs that have changed their state meanwhile.
const LOOKS: usize = 5;
/// States of the jobs in a call by type, in the order in which jobs usually pass through them, so that few are missed.
pub const REPRIORITIZE_STATES: [JobState; 3] = [JobState::Scheduled, JobState::Waiting, JobState::Ready];

/// Result of `ReprioritizeJobs`.
#[derive(Clone, Debug, Default)]
pub struct Reprioritized {
    /// Number of changed jobs.
    pub jobs: i64,
    /// Ids of the changed jobs, if the call named ids.
    pub ids: Vec<i64>,
    /// Position at which the next call continues.
    pub next: Option<PagePosition>,
}

impl Operator {
    pub async fn reprioritize(&self, selection: Selection, priority: i16, by: &Actor) -> Result<Reprioritized, Error> {
        let selection = match selection {
            Selection::Ids(chosen) => {
                let ids = self.reprioritize_ids(chosen, priority, by).await?;
                return Ok(Reprioritized { jobs: ids.len() as i64, ids, next: None });
            }
            Selection::OfType(selection) => selection,
        };
        let walk = Walk::of_type(self, &selection, false, &REPRIORITIZE_STATES).await?;
        let (mut walk, mut jobs) = (walk.with_other_priority(priority), 0);
        while let Some((_, batch)) = walk.next().await? {
            jobs += self.reprioritize_ids(batch, priority, by).await?.len() as i64;
        }
        Ok(Reprioritized { jobs, ids: Vec::new(), next: walk.rest() })
    }

    /// Sets the priority of these jobs, and returns the ids of those that are not finished or dead.
    async fn reprioritize_ids(&self, chosen: Chosen, priority: i16, by: &Actor) -> Result<Vec<i64>, Error> {
        let (mut done, mut left) = (Vec::new(), chosen.ids.clone());
        for _ in 0..LOOKS {
            left.sort_unstable();
            left.dedup();
            let mut jobs = Vec::new();
            let change = |store: Store, ids: Vec<i64>| {
                let jobs = chosen.but(ids);
                async move { store.reprioritize(&jobs, priority, by).await }
            };
            self.but_for_locked(left.clone(), change, |some| jobs.extend(some)).await?;
            self.announce_ranks(&jobs);
            done.extend(jobs.iter().map(|job| job.id));
            done.sort_unstable();
            if jobs.len() == left.len() {
                break;
            }
            left.retain(|id| done.binary_search(id).is_err());
            left = self.context.store.still_live(&left).await?;
            if left.is_empty() {
                break;
            }
        }
        Ok(done)
    }

    /// Announces the new ranks of these jobs to all brokers.
    pub(super) fn announce_ranks(&self, jobs: &[store::Reprioritized]) {
        let mut lowest: HashMap<TypeId, i64> = HashMap::new();
        for job in jobs {
            if let Some(rank) = job.rank {
                lowest.entry(job.type_id).and_modify(|l| *l = rank.min(*l)).or_insert(rank);
            }
        }
        for (type_id, lowest_rank) in lowest {
            rerank::announce(&self.context, type_id, lowest_rank);
        }
    }
}
