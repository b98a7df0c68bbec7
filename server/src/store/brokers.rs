//! A broker's own row, on which all of its leases depend.

use std::time::{Duration, SystemTime};

use super::{Actor, Lane, Patience, Statement, Store, StoreError, audit::Change};

/// What a broker finds of what it needs.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// Its lease.
    pub has_lease: bool,
    /// Somewhere to write history and payloads to.
    pub has_partitions: bool,
    /// All partitions for now.
    pub has_all_partitions: bool,
}

/// A broker, as its row says.
#[derive(Clone, Debug)]
pub struct BrokerView {
    /// Its number, which changes when its lease has expired.
    pub id: i32,
    /// Its name.
    pub name: String,
    /// When it began.
    pub started: SystemTime,
    /// Whether its lease has not expired.
    pub lives: bool,
}

impl Store {
    /// The brokers, the newest first.
    pub async fn list_brokers(&self, at_most: i32) -> Result<Vec<BrokerView>, StoreError> {
        let rows = self.general().await?.query(Statement::ListBrokers, &[&at_most]).await?;
        let broker = |row: &tokio_postgres::Row| BrokerView {
            id: row.get("id"),
            name: row.get("name"),
            started: row.get("started"),
            lives: row.get("lives"),
        };
        Ok(rows.iter().map(broker).collect())
    }

    /// Registers a broker with a lease of this length; returns its new id.
    pub async fn register_broker(&self, name: &str, lease: Duration) -> Result<i32, StoreError> {
        let lease_ms = lease.as_millis() as i64;
        let row = self.hot().await?.query_one(Statement::RegisterBroker, &[&name, &lease_ms]).await?;
        Ok(row.get(0))
    }

    /// What tells this database from others.
    pub async fn database_id(&self) -> Result<String, StoreError> {
        Ok(self.general().await?.query_one(Statement::DatabaseId, &[]).await?.get(0))
    }

    /// Gives the database a new identity, and new keys for page tokens: it is a copy, and its brokers must not be taken
    /// for those of the original. Returns the identity. Brokers that run keep the old one until they are restarted.
    pub async fn new_identity(&self, by: &Actor) -> Result<String, StoreError> {
        let mut transaction = self.begin_general().await?;
        let rows = transaction.query(Statement::NewIdentity, &[]).await?;
        let identities: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        transaction.record(by, &Change::of_ids(&identities)).await?;
        transaction.commit().await?;
        let none = || StoreError::Refused("the database has no row for its identity".into());
        identities.into_iter().next().ok_or_else(none)
    }

    /// Whether the broker has what it needs to store, claim and settle jobs.
    pub async fn readiness(&self, broker_id: i32) -> Result<Readiness, StoreError> {
        let row = self.general().await?.query_one(Statement::Readiness, &[&broker_id]).await?;
        let has = |name: &str| row.get::<_, Option<bool>>(name).unwrap_or(false);
        Ok(Readiness {
            has_lease: has("has_lease"),
            has_partitions: has("has_partitions"),
            has_all_partitions: has("has_days") && has("has_defaults"),
        })
    }

    /// The key of page tokens, which all brokers of the database share.
    pub async fn page_token_key(&self) -> Result<Vec<u8>, StoreError> {
        Ok(self.general().await?.query_one(Statement::PageTokenKey, &[]).await?.get(0))
    }

    /// Whether the broker, which goes by this version of the settings, is still alive, for so long again; an expired one stays dead. If somebody has locked its row, it
    /// waits aside for a small part of the lease, and the error says who that is.
    pub async fn renew_broker(&self, broker_id: i32, lease: Duration, version: i64) -> Result<bool, StoreError> {
        let cause = match self.renew_once(broker_id, lease, version).await {
            Err(StoreError::Locked(cause)) => cause,
            other => return other,
        };
        let patient = self.aside(Lane::Renew, Patience::Long);
        let renewing = self.with_holders(Lane::Renew, Box::pin(patient.renew_once(broker_id, lease, version)));
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

    /// The broker stops; leases that are left can be adopted within the grace time.
    pub async fn retire_broker(&self, broker_id: i32, grace: Duration) -> Result<(), StoreError> {
        let grace_ms = grace.as_millis() as i64;
        self.hot().await?.query(Statement::RetireBroker, &[&broker_id, &grace_ms]).await.map(drop)
    }

    /// Deletes the rows of dead brokers that hold no leases any more.
    pub async fn delete_expired_brokers(&self) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::DeleteExpiredBrokers, &[]).await.map(drop)
    }
}
