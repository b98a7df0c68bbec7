//! Statements on the row of a broker. While the row has not expired, the broker keeps the leases of its workers.

use std::time::{Duration, SystemTime};

use super::{Actor, Lane, LockWait, Statement, Store, StoreError, audit::Change};

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

impl Store {
    /// Returns the brokers, newest first.
    pub async fn list_brokers(&self, at_most: i32) -> Result<Vec<BrokerView>, StoreError> {
        let rows = self.general().await?.query(Statement::ListBrokers, &[&at_most]).await?;
        let broker = |row: &tokio_postgres::Row| BrokerView {
            id: row.get("id"),
            name: row.get("name"),
            started: row.get("started"),
            is_alive: row.get("lives"),
        };
        Ok(rows.iter().map(broker).collect())
    }

    /// Registers a broker, whose row expires after the time `lease` without a heartbeat. Returns the new broker id.
    pub async fn register_broker(&self, name: &str, lease: Duration) -> Result<i32, StoreError> {
        let lease_ms = lease.as_millis() as i64;
        let row = self.hot().await?.query_one(Statement::RegisterBroker, &[&name, &lease_ms]).await?;
        Ok(row.get(0))
    }

    /// Returns the identity of the database. A copy of the database has the same identity until `new_identity` is
    /// called on the copy.
    pub async fn database_id(&self) -> Result<String, StoreError> {
        Ok(self.general().await?.query_one(Statement::DatabaseId, &[]).await?.get(0))
    }

    /// Gives a copied database a new identity and new keys for page tokens, so that its brokers are not mistaken for
    /// brokers of the original. Returns the new identity, which running brokers use only after a restart.
    pub async fn new_identity(&self, by: &Actor) -> Result<String, StoreError> {
        let mut transaction = self.begin_general().await?;
        let rows = transaction.query(Statement::NewIdentity, &[]).await?;
        let identities: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        transaction.record(by, &Change::of_ids(&identities)).await?;
        transaction.commit().await?;
        let none = || {
            StoreError::Refused("table identity of the schema has no row: restore the schema from a whole dump".into())
        };
        identities.into_iter().next().ok_or_else(none)
    }

    /// Checks whether the broker has its lease and the tables that it needs to store, claim and settle jobs.
    pub async fn readiness(&self, broker_id: i32) -> Result<Readiness, StoreError> {
        let row = self.hot().await?.query_one(Statement::Readiness, &[&broker_id]).await?;
        let has = |name: &str| row.get::<_, Option<bool>>(name).unwrap_or(false);
        Ok(Readiness {
            has_lease: has("has_lease"),
            has_partitions: has("has_partitions"),
            has_all_partitions: has("has_days") && has("has_defaults"),
        })
    }

    /// Tests whether the database accepts writes: inserts and claims a job of type 0, which does not exist, and rolls
    /// both back.
    pub async fn try_write(&self) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::TryWrite, &[]).await.map(drop)
    }

    /// Returns the key for page tokens, which all brokers of the database share.
    pub async fn page_token_key(&self) -> Result<Vec<u8>, StoreError> {
        Ok(self.general().await?.query_one(Statement::PageTokenKey, &[]).await?.get(0))
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
        let rows = self.hot().await?.query(Statement::RenewBroker, &[&broker_id, &lease_ms, &version]).await?;
        Ok(!rows.is_empty())
    }

    /// Lets the row of a stopping broker expire after `grace`, so that workers which reconnect to other brokers keep
    /// their leases. Deletes the row at once if the broker has no leases.
    pub async fn retire_broker(&self, broker_id: i32, grace: Duration) -> Result<(), StoreError> {
        let grace_ms = grace.as_millis() as i64;
        self.hot().await?.query(Statement::RetireBroker, &[&broker_id, &grace_ms]).await.map(drop)
    }

    /// Deletes the rows of expired brokers that hold no leases.
    pub async fn delete_expired_brokers(&self) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::DeleteExpiredBrokers, &[]).await.map(drop)
    }
}
