//! New priorities of jobs, and ranks for them or for a type's new step.

use super::{Actor, Statement, Store, StoreError, audit::Change, connection::Params, transaction::Transaction};
use crate::job::{Chosen, JobState, TypeId};

/// A position in the walk through a type's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkPosition {
    /// The state: ready, scheduled or waiting.
    pub state: JobState,
    /// The rank of the last job seen; for ready jobs only.
    pub rank: i64,
    /// Its id.
    pub id: i64,
}

/// The result of one step of the walk.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The number of jobs that were changed.
    pub moved: i64,
    /// The number of jobs that were not, because they were locked.
    pub missed: i64,
    /// The lowest rank of the changed jobs.
    pub lowest_rank: Option<i64>,
    /// The position to go on from; `None`: this state is done.
    pub next: Option<WalkPosition>,
}

/// A job with a new priority.
#[derive(Clone, Copy, Debug)]
pub struct Reprioritized {
    /// The job.
    pub id: i64,
    /// Its type.
    pub type_id: TypeId,
    /// Its rank, if it is ready.
    pub rank: Option<i64>,
}

impl Store {
    /// One step through the jobs of a type in one state. They get this priority (`None`: keep theirs), and ranks for
    /// the type's current step.
    pub async fn rerank(
        &self,
        type_id: TypeId,
        priority: Option<(i16, &Actor)>,
        from: WalkPosition,
        at_most: i32,
    ) -> Result<Step, StoreError> {
        let statement = match from.state {
            JobState::Scheduled => Statement::RerankScheduled,
            JobState::Waiting => Statement::RerankWaiting,
            _ => Statement::RerankReady,
        };
        let (priority, by) = priority.unzip();
        let params: Params<'_> = &[&type_id, &priority, &from.rank, &from.id, &at_most];
        let row = match by {
            None => self.hot().await?.query_one(statement, params).await?,
            Some(by) => {
                let mut transaction = self.begin().await?;
                let row = transaction.query_one(statement, params).await?;
                let ids: Vec<i64> = row.get("first_ids");
                let change =
                    Change { count: row.get("moved"), ..Change::of_jobs(ids.into_iter().map(|id| (id, type_id))) };
                transaction.record(by, &change).await?;
                transaction.commit().await?;
                row
            }
        };
        let (moved, stale): (i64, i64) = (row.get("moved"), row.get("stale"));
        let full = row.get::<_, i64>("seen") >= i64::from(at_most);
        let last: (Option<i64>, Option<i64>) = (row.get("last_rank"), row.get("last_id"));
        let next = match last {
            (Some(rank), Some(id)) if full => Some(WalkPosition { rank, id, ..from }),
            _ => None,
        };
        Ok(Step { moved, missed: stale - moved, lowest_rank: row.get("lowest_rank"), next })
    }

    /// Gives jobs (sorted, an id once) another priority. A job that moves at this moment may be missed.
    pub async fn reprioritize(
        &self,
        jobs: &Chosen,
        priority: i16,
        by: &Actor,
    ) -> Result<Vec<Reprioritized>, StoreError> {
        let mut transaction = self.begin().await?;
        let done = transaction.reprioritize(jobs, priority, by).await?;
        transaction.commit().await?;
        Ok(done)
    }

    /// If ranks of a type do not follow its step yet: the ms until statements that ran at the change have ended, given
    /// that they take at most `under_way_ms` (negative: they have).
    pub async fn rerank_due(&self, type_id: TypeId, under_way_ms: i64) -> Result<Option<i64>, StoreError> {
        let rows = self.general().await?.query(Statement::RerankDue, &[&type_id, &under_way_ms]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// Records that every rank of the type follows its step, unless that was changed less than this many ms ago.
    pub async fn rerank_done(&self, type_id: TypeId, under_way_ms: i64) -> Result<(), StoreError> {
        self.general().await?.query(Statement::RerankDone, &[&type_id, &under_way_ms]).await.map(drop)
    }
}

impl Transaction<'_> {
    /// Gives jobs another priority, as [`Store::reprioritize`] does.
    pub(super) async fn reprioritize(
        &mut self,
        jobs: &Chosen,
        priority: i16,
        by: &Actor,
    ) -> Result<Vec<Reprioritized>, StoreError> {
        let rows = self.query(Statement::Reprioritize, &[&jobs.ids, &priority, &jobs.types()]).await?;
        self.record(by, &Change::of_jobs(rows.iter().map(|row| (row.get("id"), row.get("type_id"))))).await?;
        let job = |row: &tokio_postgres::Row| Reprioritized {
            id: row.get("id"),
            type_id: row.get("type_id"),
            rank: row.get("rank"),
        };
        Ok(rows.iter().map(job).collect())
    }
}
