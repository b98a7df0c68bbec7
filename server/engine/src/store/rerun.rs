//! Enqueues copies of finished jobs, for the call `RerunJobs`.

use howdah_core::job::{EnqueueOutcome, Enqueued};

use super::{
    Actor, KeyedJob, RequestColumns, Statement, Store, StoreError, StoredCoordinated, audit::Change,
    enqueue_coordinated::insert_coordinated, transaction::retry_conflicts,
};

impl Store {
    /// Stores these jobs and the audit row in one transaction. Each job is a separate request: either no job has a request
    /// key, or each has one.
    pub async fn rerun_jobs(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
        by: &Actor,
    ) -> Result<StoredCoordinated, StoreError> {
        retry_conflicts(|| self.rerun_once(jobs, requests, by)).await
    }

    async fn rerun_once(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
        by: &Actor,
    ) -> Result<StoredCoordinated, StoreError> {
        let mut transaction = self.begin().await?;
        let stored = insert_coordinated(transaction.connection(), jobs, requests).await?;
        // A job whose key another job held was not stored. Its request key is deleted, so that a repeated call tries it again.
        let kept = |job: &Option<Enqueued>| job.is_some_and(|job| job.outcome == EnqueueOutcome::Kept);
        let unused: Vec<&str> =
            requests.key.iter().zip(&stored.jobs).filter(|(_, job)| kept(job)).map(|(key, _)| *key).collect();
        if !unused.is_empty() {
            transaction.query(Statement::ForgetRequests, &[&unused]).await?;
        }
        let new = jobs.iter().zip(&stored.jobs).filter_map(|(job, stored)| {
            let stored = stored.filter(|stored| stored.is_new())?;
            Some((stored.id, job.plain.type_id))
        });
        transaction.record(by, &Change::of_jobs(new)).await?;
        transaction.commit().await?;
        Ok(stored)
    }
}
