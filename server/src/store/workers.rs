//! The sessions of all brokers, and when programs without one have called.

use std::time::Duration;

use super::{Statement, Store, StoreError};
use crate::job::{ListedWorker, TypeId, WorkerPosition};

impl Store {
    /// Writes these sessions of a broker, and deletes those that have ended.
    pub async fn report_workers(
        &self,
        broker_id: i32,
        numbers: &[i64],
        summaries: &[String],
        ended: &[i64],
    ) -> Result<(), StoreError> {
        let mut connection = self.general().await?;
        connection.query(Statement::ReportWorkers, &[&broker_id, &numbers, &summaries, &ended]).await.map(drop)
    }

    /// Notes how long ago, in ms, programs have last called for jobs of these types without a stream.
    pub async fn report_pulls(&self, types: &[TypeId], ago_ms: &[i64]) -> Result<(), StoreError> {
        self.general().await?.query(Statement::ReportPulls, &[&types, &ago_ms]).await.map(drop)
    }

    /// Sessions of brokers other than these, after a position, and only of one task type if it is given.
    pub async fn list_workers(
        &self,
        after: WorkerPosition,
        but_of: &[i32],
        task_type: Option<&str>,
        at_most: i32,
    ) -> Result<Vec<ListedWorker>, StoreError> {
        let WorkerPosition { broker_id, number } = after;
        let mut connection = self.general().await?;
        let rows =
            connection.query(Statement::ListWorkers, &[&broker_id, &number, &but_of, &task_type, &at_most]).await?;
        let listed = rows.iter().map(|row| ListedWorker {
            position: WorkerPosition { broker_id: row.get("broker_id"), number: row.get("number") },
            broker: row.get("broker"),
            // One that a later release wrote in another way is a worker without figures.
            view: serde_json::from_str(row.get("summary")).unwrap_or_default(),
            age: Duration::from_millis(u64::try_from(row.get::<_, i64>("age_ms")).unwrap_or_default()),
        });
        Ok(listed.collect())
    }

    /// The worker of another broker that holds this job, if that is known.
    pub async fn worker_of_job(&self, id: i64) -> Result<Option<String>, StoreError> {
        let rows = self.general().await?.query(Statement::WorkerOfJob, &[&id]).await?;
        Ok(rows.first().and_then(|row| row.get("worker_id")))
    }
}
