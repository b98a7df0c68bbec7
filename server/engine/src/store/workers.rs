//! Sessions of workers at all brokers, and the time of the last pull of each task type.

use std::time::Duration;

use howdah_core::job::{ListedWorker, TypeId, WorkerPosition};

use super::{Statement, Store, StoreError};

impl Store {
    /// Stores changed worker sessions of a broker, and deletes its ended sessions. Does nothing if the row of the
    /// broker is deleted.
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

    /// Records how many ms ago jobs of these task types were last pulled.
    pub async fn report_pulls(&self, types: &[TypeId], ago_ms: &[i64]) -> Result<(), StoreError> {
        self.general().await?.query(Statement::ReportPulls, &[&types, &ago_ms]).await.map(drop)
    }

    /// Returns worker sessions after a position, except sessions of the brokers `but_of`. `task_type` restricts the
    /// sessions to one task type.
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
            // A later release may have written the summary of a worker session in an unknown format. Such a worker is
            // listed without figures.
            view: serde_json::from_str(row.get("summary")).unwrap_or_default(),
            age: Duration::from_millis(u64::try_from(row.get::<_, i64>("age_ms")).unwrap_or_default()),
        });
        Ok(listed.collect())
    }

    /// Returns which of these task types have a worker that takes jobs at a broker other than `but_of`.
    pub async fn types_with_workers(&self, types: &[&str], but_of: &[i32]) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::TypesWithWorkers, &[&types, &but_of]).await?;
        Ok(rows.iter().map(|row| row.get("name")).collect())
    }

    /// Returns the id of the worker that holds this job, as its broker has reported it. `None` if no report names the
    /// job.
    pub async fn worker_of_job(&self, id: i64) -> Result<Option<String>, StoreError> {
        let rows = self.general().await?.query(Statement::WorkerOfJob, &[&id]).await?;
        Ok(rows.first().and_then(|row| row.get("worker_id")))
    }

    /// Returns ids of the jobs of a task type that a worker holds, as its broker has reported them: of the jobs held for some
    /// seconds, those held longest.
    pub async fn jobs_of_worker(&self, worker_id: &str, type_id: Option<TypeId>) -> Result<Vec<i64>, StoreError> {
        let rows = self.general().await?.query(Statement::JobsOfWorker, &[&worker_id, &type_id]).await?;
        Ok(rows.iter().map(|row| row.get("id")).collect())
    }
}
