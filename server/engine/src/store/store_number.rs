//! Number of a store, which distinguishes its job ids from ids of other stores.

use howdah_core::job::StoreNumber;

use super::{Actor, Statement, Store, StoreError, audit::Change};

/// Facts that identify a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    pub number: StoreNumber,
    /// Identity of the database. A copy of the database has the same identity.
    pub identity: String,
    /// Whether the store has given out job ids. Then its number can no longer change, because the ids contain it.
    pub has_ids: bool,
}

impl Store {
    /// Reads the facts that identify this store.
    pub async fn facts(&self) -> Result<StoreFacts, StoreError> {
        let row = self.general().await?.query_one(Statement::StoreFacts, &[]).await?;
        let number: i32 = row.get("number");
        let known = u16::try_from(number).ok().and_then(StoreNumber::new);
        let number = known.ok_or_else(|| {
            let range = format!("sequence job_id starts in the range of store number {number}, which is not valid");
            StoreError::Refused(range.into())
        })?;
        Ok(StoreFacts { number, identity: row.get("identity"), has_ids: row.get("has_ids") })
    }

    /// Returns the names of the server's databases to which the broker's role may connect.
    pub async fn databases(&self) -> Result<Vec<String>, StoreError> {
        let rows = self.general().await?.query(Statement::Databases, &[]).await?;
        Ok(rows.iter().map(|row| row.get("name")).collect())
    }

    /// Writes an audit entry for a change of the broker's stores.
    pub async fn record_stores(&self, names: Vec<String>, by: &Actor) -> Result<(), StoreError> {
        let mut transaction = self.begin_general().await?;
        let count = i64::try_from(names.len()).unwrap_or(i64::MAX);
        transaction.record(by, &Change { count, ids: names, ..Change::default() }).await?;
        transaction.commit().await
    }

    /// Sets the store number. Must run before the first job is stored, and while no broker serves the store.
    pub async fn set_number(&self, number: StoreNumber, by: &Actor) -> Result<(), StoreError> {
        let mut transaction = self.begin_general().await?;
        transaction.query(Statement::SetStoreNumber, &[&i32::from(number.get())]).await?;
        transaction.record(by, &Change { count: 1, ids: vec![number.to_string()], ..Change::default() }).await?;
        transaction.commit().await
    }
}
