//! Jobs on their way in that need a decision: keys, start times, requests that may be repeats.

use std::collections::HashMap;

use tokio_postgres::Row;

use super::{
    Connection, Statement, Store, StoreError,
    enqueue::{Columns, PlainJob},
};
use crate::job::{Start, TypeId};

/// A job of a request that uses keys or start times.
#[derive(Clone, Copy)]
pub struct KeyedJob<'a> {
    /// The job.
    pub plain: PlainJob<'a>,
    /// Which request of the batch it belongs to.
    pub request_no: i32,
}

/// Requests that may be repeated.
#[derive(Default)]
pub struct RequestColumns<'a> {
    /// Which request of the batch.
    pub request_no: Vec<i32>,
    /// Its key.
    pub key: Vec<&'a str>,
    /// Hash of its jobs.
    pub body_hash: Vec<&'a [u8]>,
}

/// What the statement decided of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedOutcome {
    /// Its request was made before.
    RepeatedRequest,
    /// Another job has its key.
    KeyHeld,
    /// Stored in ready.
    Ready,
    /// Stored in scheduled, due so many µs from now.
    Scheduled(i64),
}

/// Ids and outcomes of keyed jobs, in their order.
#[derive(Debug)]
pub struct StoredKeyed {
    /// One a job.
    pub jobs: Vec<(i64, KeyedOutcome)>,
    /// The database's clock, µs after 1970.
    pub now_us: i64,
}

impl Store {
    /// Stores requests that use keys or start times, in one transaction; `amend` may read what
    /// was decided and change what a repeat will be told.
    pub async fn enqueue_keyed(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<KeyedTransaction<'_>, StoreError> {
        let mut connection = self.hot().await?;
        connection.batch("BEGIN").await?;
        match insert_keyed(&mut connection, jobs, requests).await {
            Ok(stored) => Ok(KeyedTransaction { connection, stored, open: true }),
            Err(error) => {
                connection.roll_back().await;
                Err(error)
            }
        }
    }
}

/// As [`Store::enqueue_keyed`], in a transaction that the caller has begun.
pub(super) async fn insert_keyed(
    connection: &mut Connection,
    jobs: &[KeyedJob<'_>],
    requests: &RequestColumns<'_>,
) -> Result<StoredKeyed, StoreError> {
    let c = Columns::of(&jobs.iter().map(|j| j.plain));
    let request_no: Vec<i32> = jobs.iter().map(|j| j.request_no).collect();
    let key: Vec<Option<&str>> = jobs.iter().map(|j| j.plain.job.key.as_deref()).collect();
    let (run_at_us, delay_ms) = start_columns(jobs);
    let rows = connection
        .query(
            Statement::EnqueueKeyed,
            &[
                &request_no,
                &c.type_id,
                &c.rank_base,
                &c.priority,
                &c.max_attempts,
                &c.timeout_ms,
                &key,
                &c.headers,
                &c.options,
                &c.payload,
                &run_at_us,
                &delay_ms,
                &requests.request_no,
                &requests.key,
                &requests.body_hash,
                &c.out_of_line_ordinal,
                &c.out_of_line_data,
            ],
        )
        .await?;
    let now_us = rows.first().map_or(0, |row| row.get("now_us"));
    let mut stored: Vec<(i64, KeyedOutcome)> = rows.iter().map(outcome).collect();
    stored.sort_unstable_by_key(|(id, _)| *id);
    Ok(StoredKeyed { jobs: stored, now_us })
}

/// When they start: µs after 1970, or ms from now.
pub(super) fn start_columns(jobs: &[KeyedJob<'_>]) -> (Vec<Option<i64>>, Vec<Option<i64>>) {
    let start = |job: &KeyedJob<'_>| match job.plain.job.start {
        Start::At(us) => (Some(us), None),
        Start::After(delay) => (None, Some(delay.as_millis() as i64)),
        Start::Now => (None, None),
    };
    jobs.iter().map(start).unzip()
}

fn outcome(row: &Row) -> (i64, KeyedOutcome) {
    let outcome = match row.get("outcome") {
        "repeated" => KeyedOutcome::RepeatedRequest,
        "kept" => KeyedOutcome::KeyHeld,
        "ready" => KeyedOutcome::Ready,
        _ => KeyedOutcome::Scheduled(row.get("due_in_us")),
    };
    (row.get("id"), outcome)
}

/// An enqueue that is not committed yet. Dropped, it is rolled back with its connection.
pub struct KeyedTransaction<'a> {
    connection: super::Loan<'a>,
    /// What was decided.
    pub stored: StoredKeyed,
    open: bool,
}

impl Drop for KeyedTransaction<'_> {
    fn drop(&mut self) {
        if self.open {
            self.connection.retire();
        }
    }
}

impl Store {
    /// Frees the keys that were held for a time, which is over.
    pub async fn free_held_keys(&self) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::FreeHeldKeys, &[]).await.map(drop)
    }

    /// What the first calls with these request keys stored: key → (hash, ids).
    pub async fn repeated_requests(&self, keys: &[&str]) -> Result<HashMap<String, (Vec<u8>, Vec<i64>)>, StoreError> {
        let rows = self.hot().await?.query(Statement::RepeatedRequests, &[&keys]).await?;
        Ok(rows.iter().map(|r| (r.get("key"), (r.get("body_hash"), r.get("ids")))).collect())
    }
}

impl KeyedTransaction<'_> {
    /// What the first calls with these request keys stored: key → (hash, ids).
    pub async fn repeated(&mut self, keys: &[&str]) -> Result<HashMap<String, (Vec<u8>, Vec<i64>)>, StoreError> {
        let rows = self.connection.query(Statement::RepeatedRequests, &[&keys]).await?;
        Ok(rows.iter().map(|r| (r.get("key"), (r.get("body_hash"), r.get("ids")))).collect())
    }

    /// Who holds these job keys now.
    pub async fn key_holders(
        &mut self,
        types: &[TypeId],
        keys: &[&str],
    ) -> Result<HashMap<(TypeId, String), i64>, StoreError> {
        let rows = self.connection.query(Statement::KeyHolders, &[&types, &keys]).await?;
        Ok(rows.iter().map(|r| ((r.get("type_id"), r.get("key")), r.get("job_id"))).collect())
    }

    /// What a repeat of the request with this key will be told.
    pub async fn amend(&mut self, key: &str, ids: &[i64]) -> Result<(), StoreError> {
        self.connection.query(Statement::AmendRequest, &[&key, &ids]).await.map(drop)
    }

    /// Makes it so.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        self.connection.batch("COMMIT").await?;
        self.open = false;
        Ok(())
    }

    /// Undoes it.
    pub async fn roll_back(mut self) {
        self.connection.roll_back().await;
        self.open = false;
    }
}
