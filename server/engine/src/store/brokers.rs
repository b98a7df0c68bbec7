//! Statements on the row of a broker, and on the sessions of its workers. While the row has not expired, the broker keeps
//! the leases of its workers.

use std::time::{Duration, SystemTime};

use howdah_core::job::{ListedWorker, TypeId, WorkerPosition};
use tokio_postgres::Row;

use super::{
    Actor, Lane, LockWait, Statement, Store, StoreError,
    audit::Change,
    rows::{from_row, millis},
};

/// Preconditions of a broker's work, as found in the database.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// Whether the broker's row in the table `broker` has not expired.
    pub has_lease: bool,
    /// Whether each of the tables `history`, `payload` and `job_tag` has a partition for today or a default partition,
    /// so that rows can be stored.
    pub has_partitions: bool,
    /// Whether the tables `history`, `payload` and `job_tag` all have today's partition and a default partition.
    pub has_all_partitions: bool,
}

from_row! {
    Readiness(row) {
        has_lease,
        has_partitions: has(row, "has_partitions"),
        has_all_partitions: has(row, "has_days") && has(row, "has_defaults"),
    }
}

/// Reads a column that is null if there are no tables to check.
fn has(row: &Row, column: &str) -> bool {
    row.get::<_, Option<bool>>(column).unwrap_or(false)
}

/// A row of the table of brokers.
#[derive(Clone, Debug)]
pub struct BrokerView {
    /// Broker id. A broker whose lease has expired registers again and gets a new id.
    pub id: i32,
    pub name: String,
    pub started: SystemTime,
    /// Whether the broker's row in the table `broker` has not expired.
    pub is_alive: bool,
}

/// Worker that holds a job.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Public id of the worker.
    pub worker_id: String,
    /// Whether the worker's stream is open.
    pub is_connected: bool,
}

from_row! { Holder(row) { worker_id, is_connected } }

from_row! { BrokerView(row) { id, name, started, is_alive: row.get("lives") } }

from_row! {
    ListedWorker(row) {
        position: WorkerPosition { broker_id: row.get("broker_id"), number: row.get("number") },
        broker,
        // A later release may have written the summary of a worker session in an unknown format. Such a worker is listed
        // without figures.
        view: serde_json::from_str(row.get("summary")).unwrap_or_default(),
        age: millis(row, "age_ms").unwrap_or_default(),
    }
}

impl Store {
    /// Returns the brokers, newest first.
    pub async fn list_brokers(&self, at_most: i32) -> Result<Vec<BrokerView>, StoreError> {
        self.general().await?.list(Statement::ListBrokers, &[&at_most]).await
    }

    /// Registers a broker, whose row expires after the time `lease` without a heartbeat. Returns the new broker id.
    pub async fn register_broker(&self, name: &str, lease: Duration) -> Result<i32, StoreError> {
        let lease_ms = lease.as_millis() as i64;
        self.hot().await?.one(Statement::RegisterBroker, &[&name, &lease_ms]).await
    }

    /// Returns the identity of the database. A copy of the database has the same identity until `new_identity` is
    /// called on the copy.
    pub async fn database_id(&self) -> Result<String, StoreError> {
        self.general().await?.one(Statement::DatabaseId, &[]).await
    }

    /// Gives a copied database a new identity and new keys for page tokens, so that its brokers are not mistaken for
    /// brokers of the original. Returns the new identity, which running brokers use only after a restart.
    pub async fn new_identity(&self, by: &Actor) -> Result<String, StoreError> {
        let mut transaction = self.begin_general().await?;
        let identities: Vec<String> = transaction.list(Statement::NewIdentity, &[]).await?;
        transaction.record(by, &Change::of_ids(&identities)).await?;
        transaction.commit().await?;
        let none = || {
            StoreError::Refused("table identity of the schema has no row: restore the schema from a whole dump".into())
        };
        identities.into_iter().next().ok_or_else(none)
    }

    /// Checks whether the broker has its lease and the tables that it needs to store, claim and settle jobs.
    pub async fn readiness(&self, broker_id: i32) -> Result<Readiness, StoreError> {
        self.hot().await?.one(Statement::Readiness, &[&broker_id]).await
    }

    /// Tests whether the database accepts writes: inserts and claims a job of type 0, which does not exist, and rolls
    /// both back.
    pub async fn try_write(&self) -> Result<(), StoreError> {
        self.hot().await?.run(Statement::TryWrite, &[]).await
    }

    /// Returns the key for page tokens, which all brokers of the database share.
    pub async fn page_token_key(&self) -> Result<Vec<u8>, StoreError> {
        self.general().await?.one(Statement::PageTokenKey, &[]).await
    }

    /// Renews a broker's row (its heartbeat), and records the settings version that the broker uses. False if the row
    /// has expired: an expired row cannot be renewed. While another transaction locks the row, retries in a side lane
    /// for 1/8 of the lease. After that, the error names the lock holder.
    pub async fn renew_broker(&self, broker_id: i32, lease: Duration, version: i64) -> Result<bool, StoreError> {
        let cause = match self.renew_once(broker_id, lease, version).await {
            Err(StoreError::Locked(cause)) => cause,
            other => return other,
        };
        let side_lane_store = self.side_lane(Lane::Renew, LockWait::Long);
        let renewing = self.with_holders(Lane::Renew, Box::pin(side_lane_store.renew_once(broker_id, lease, version)));
        match tokio::time::timeout(lease / 8, renewing).await {
            Ok((Ok(renewed), _)) => Ok(renewed),
            Ok((Err(StoreError::Locked(_)), holders)) => Err(StoreError::Locked(holders.map_or(cause, Into::into))),
            Ok((Err(error), _)) => Err(error),
            Err(_) => Err(StoreError::Locked(cause)),
        }
    }

    async fn renew_once(&self, broker_id: i32, lease: Duration, version: i64) -> Result<bool, StoreError> {
        let lease_ms = lease.as_millis() as i64;
        self.hot().await?.changes(Statement::RenewBroker, &[&broker_id, &lease_ms, &version]).await
    }

    /// Lets the row of a stopping broker expire after `grace`, so that workers which reconnect to other brokers keep
    /// their leases. Deletes the row at once if the broker has no leases.
    pub async fn retire_broker(&self, broker_id: i32, grace: Duration) -> Result<(), StoreError> {
        let grace_ms = grace.as_millis() as i64;
        self.hot().await?.run(Statement::RetireBroker, &[&broker_id, &grace_ms]).await
    }

    /// Deletes the rows of expired brokers that hold no leases.
    pub async fn delete_expired_brokers(&self) -> Result<(), StoreError> {
        self.hot().await?.run(Statement::DeleteExpiredBrokers, &[]).await
    }

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
        connection.run(Statement::ReportWorkers, &[&broker_id, &numbers, &summaries, &ended]).await
    }

    /// Records how many ms ago jobs of these task types were last pulled.
    pub async fn report_pulls(&self, types: &[TypeId], ago_ms: &[i64]) -> Result<(), StoreError> {
        self.general().await?.run(Statement::ReportPulls, &[&types, &ago_ms]).await
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
        connection.list(Statement::ListWorkers, &[&broker_id, &number, &but_of, &task_type, &at_most]).await
    }

    /// Returns which of these task types have a worker that takes jobs at a broker other than `but_of`.
    pub async fn types_with_workers(&self, types: &[&str], but_of: &[i32]) -> Result<Vec<String>, StoreError> {
        self.general().await?.list(Statement::TypesWithWorkers, &[&types, &but_of]).await
    }

    /// Returns the worker that holds this job, as its broker has reported it. `None` if no report names the job.
    pub async fn worker_of_job(&self, id: i64) -> Result<Option<Holder>, StoreError> {
        self.general().await?.find(Statement::WorkerOfJob, &[&id]).await
    }

    /// Returns ids of the jobs of a task type that a worker holds, as its broker has reported them. A report has only the
    /// longest-held jobs, among those held for some seconds.
    pub async fn jobs_of_worker(&self, worker_id: &str, type_id: Option<TypeId>) -> Result<Vec<i64>, StoreError> {
        self.general().await?.list(Statement::JobsOfWorker, &[&worker_id, &type_id]).await
    }
}
