//! Priority changes of unfinished jobs.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use howdah_core::{
    error::Error,
    job::{Chosen, PagePosition, TaskTypeName, TypeId},
};

use super::Operator;
use crate::{
    maintain::rerank,
    store::{self, Actor, Store, WalkPosition},
};

/// Maximum number of passes over the jobs. Later passes find jobs that have changed their state meanwhile.
const LOOKS: usize = 5;
/// Time limit of a call that reprioritizes all jobs of a task type. Then the call returns a page token for the remaining jobs.
pub const LONGEST: Duration = Duration::from_secs(5);

/// The jobs whose priority changes.
#[derive(Clone, Debug)]
pub enum ReprioritizeQuery {
    /// Jobs by id.
    Ids(Chosen),
    /// All jobs of a type that wait for a worker, starting at a position.
    Type(TaskTypeName, Option<PagePosition>),
}

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
    pub async fn reprioritize(
        &self,
        query: ReprioritizeQuery,
        priority: i16,
        by: &Actor,
    ) -> Result<Reprioritized, Error> {
        match query {
            ReprioritizeQuery::Ids(jobs) => self.reprioritize_ids(jobs, (priority, by)).await,
            ReprioritizeQuery::Type(name, from) => match self.context.registry.find(&name).await? {
                Some(type_id) => self.reprioritize_type(type_id, (priority, by), from).await,
                None => Ok(Reprioritized::default()),
            },
        }
    }

    async fn reprioritize_ids(&self, chosen: Chosen, (priority, by): (i16, &Actor)) -> Result<Reprioritized, Error> {
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
        Ok(Reprioritized { jobs: done.len() as i64, ids: done, next: None })
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

    async fn reprioritize_type(
        &self,
        type_id: TypeId,
        priority: (i16, &Actor),
        from: Option<PagePosition>,
    ) -> Result<Reprioritized, Error> {
        let until = Instant::now() + LONGEST;
        let first = rerank::start_of(rerank::STATES[0]);
        let mut at = from.map_or(first, |p| WalkPosition { state: p.state, rank: p.rank, id: p.id });
        let mut jobs = 0;
        loop {
            let (moved, _, next) = rerank::step(&self.context, type_id, Some(priority), at).await?;
            jobs += moved;
            let after = || {
                let position = rerank::STATES.iter().position(|state| *state == at.state)?;
                rerank::STATES.get(position + 1).copied().map(rerank::start_of)
            };
            let Some(next) = next.or_else(after) else {
                return Ok(Reprioritized { jobs, ..Reprioritized::default() });
            };
            at = next;
            if Instant::now() >= until {
                let next = Some(PagePosition { state: at.state, rank: at.rank, id: at.id });
                return Ok(Reprioritized { jobs, next, ..Reprioritized::default() });
            }
        }
    }
}
