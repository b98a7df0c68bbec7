//! Changes priorities of jobs, and recomputes ranks after a change of a priority or of a type's priority step.

use howdah_core::job::{Chosen, JobState, PagePosition, TypeId};

use super::{
    Actor, Statement, Store, StoreError,
    audit::Change,
    connection::Params,
    rows::{self, from_row},
    transaction::Transaction,
};

/// Result of one bounded scan step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Number of jobs that were skipped because another transaction had locked them.
    pub missed: i64,
    /// Lowest rank of the changed jobs.
    pub lowest_rank: Option<i64>,
    /// Position to continue from. `None` if all jobs of this state were scanned.
    pub next: Option<PagePosition>,
}

#[derive(Clone, Copy, Debug)]
pub struct Reprioritized {
    pub id: i64,
    pub type_id: TypeId,
    /// Rank of the job, if it is ready.
    pub rank: Option<i64>,
}

from_row! { Reprioritized(row) { id, type_id, rank } }

impl Store {
    /// Scans some jobs of a task type in one state, and recomputes their ranks with the current priority step of the
    /// type.
    pub async fn rerank(&self, type_id: TypeId, from: PagePosition, at_most: i32) -> Result<Step, StoreError> {
        let statement = match from.state {
            JobState::Scheduled => Statement::RerankScheduled,
            JobState::Waiting => Statement::RerankWaiting,
            _ => Statement::RerankReady,
        };
        let params: Params<'_> = &[&type_id, &from.rank, &from.id, &at_most];
        let row = self.hot().await?.query_one(statement, params).await?;
        let (moved, stale): (i64, i64) = (row.get("moved"), row.get("stale"));
        let full = row.get::<_, i64>("seen") >= i64::from(at_most);
        let last: (Option<i64>, Option<i64>) = (row.get("last_rank"), row.get("last_id"));
        let next = match last {
            (Some(rank), Some(id)) if full => Some(PagePosition { rank, id, ..from }),
            _ => None,
        };
        Ok(Step { missed: stale - moved, lowest_rank: row.get("lowest_rank"), next })
    }

    /// Sets the priority of the given jobs, which must be unique and sorted. May miss a job that changes its state
    /// concurrently.
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

    /// Returns the time in ms until no running statement can still store ranks with the old priority step of the task
    /// type. A statement runs for at most `under_way_ms` after the change of the step. Negative if that time is over.
    /// `None` if no ranks have to be recomputed.
    pub async fn rerank_due(&self, type_id: TypeId, under_way_ms: i64) -> Result<Option<i64>, StoreError> {
        self.general().await?.find(Statement::RerankDue, &[&type_id, &under_way_ms]).await
    }

    /// Records that all ranks of the task type use its current priority step, unless the step was changed less than
    /// `under_way_ms` ago.
    pub async fn rerank_done(&self, type_id: TypeId, under_way_ms: i64) -> Result<(), StoreError> {
        self.general().await?.run(Statement::RerankDone, &[&type_id, &under_way_ms]).await
    }
}

impl Transaction<'_> {
    /// Sets the priority of jobs, as [`Store::reprioritize`] does.
    pub(super) async fn reprioritize(
        &mut self,
        jobs: &Chosen,
        priority: i16,
        by: &Actor,
    ) -> Result<Vec<Reprioritized>, StoreError> {
        let rows = self.query(Statement::Reprioritize, &[&jobs.ids, &priority, &jobs.types()]).await?;
        self.record(by, &Change::of_jobs(rows.iter().map(|row| (row.get("id"), row.get("type_id"))))).await?;
        Ok(rows::all(&rows))
    }
}
