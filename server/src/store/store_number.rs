//! What tells the stores of one fleet apart.

use super::{Actor, Statement, Store, StoreError, audit::Change};
use crate::job::StoreNumber;

/// What a database says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// Its number.
    pub number: StoreNumber,
    /// What tells it from others; a copy has the same.
    pub identity: String,
    /// Whether it has given out ids: then its number stays.
    pub has_ids: bool,
}

impl Store {
    /// What tells this store from others.
    pub async fn facts(&self) -> Result<StoreFacts, StoreError> {
        let row = self.general().await?.query_one(Statement::StoreFacts, &[]).await?;
        let number: i32 = row.get("number");
        let known = u16::try_from(number).ok().and_then(StoreNumber::new);
        let number = known.ok_or_else(|| {
            let range = format!("the sequence job_id begins in the range of store {number}, and there is none");
            StoreError::Refused(range.into())
        })?;
        Ok(StoreFacts { number, identity: row.get("identity"), has_ids: row.get("has_ids") })
    }

    /// Gives the store a number, before its first job and while no broker runs on it.
    pub async fn set_number(&self, number: StoreNumber, by: &Actor) -> Result<(), StoreError> {
        let mut transaction = self.begin_general().await?;
        transaction.query(Statement::SetStoreNumber, &[&i32::from(number.get())]).await?;
        transaction.record(by, &Change { count: 1, ids: vec![number.to_string()], ..Change::default() }).await?;
        transaction.commit().await
    }
}
