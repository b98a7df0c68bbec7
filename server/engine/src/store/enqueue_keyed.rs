//! Enqueues jobs with keys, start times or request keys. The statement decides the outcome of each job.

use std::collections::HashMap;

use howdah_core::job::{Start, TypeId};
use tokio_postgres::Row;

use super::{
    Connection, Statement, Store, StoreError,
    enqueue::{Columns, PlainJob},
};

/// A job of a request that uses keys or start times.
#[derive(Clone, Copy)]
pub struct KeyedJob<'a> {
    /// Job with the settings that apply to it.
    pub plain: PlainJob<'a>,
    /// Number of the job's request in the batch.
    pub request_no: i32,
}

/// Columns of idempotent requests, one element per request.
#[derive(Default)]
pub struct RequestColumns<'a> {
    /// Numbers of the requests in the batch.
    pub request_no: Vec<i32>,
    pub key: Vec<&'a str>,
    /// Hashes of the request bodies.
    pub body_hash: Vec<&'a [u8]>,
}

/// Outcome of a keyed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedOutcome {
    /// Not stored: the request key was used before.
    RepeatedRequest,
    /// Not stored: another job holds the key.
    KeyHeld,
    /// Stored as ready.
    Ready,
    /// Stored as scheduled, due in this many µs.
    Scheduled(i64),
}

/// Ids and outcomes of keyed jobs, in the order of the request.
#[derive(Debug)]
pub struct StoredKeyed {
    /// Id and outcome of each job.
    pub jobs: Vec<(i64, KeyedOutcome)>,
    /// Database time in µs since 1970.
    pub now_us: i64,
}

impl Store {
    /// Stores requests that use keys or start times, in a transaction that the caller commits. Before the commit, the
    /// caller can change the answer that a repeat of a request will get (`amend`).
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

/// Stores requests as [`Store::enqueue_keyed`] does, in a transaction that the caller has begun.
pub(super) async fn insert_keyed(
    connection: &mut Connection,
    jobs: &[KeyedJob<'_>],
    requests: &RequestColumns<'_>,
) -> Result<StoredKeyed, StoreError> {
    let c = Columns::new(&jobs.iter().map(|j| j.plain));
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

/// Returns the start times of jobs as two columns: absolute in µs since 1970, or as a delay in ms.
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

/// An uncommitted enqueue of keyed jobs. A drop without commit closes the connection, so Postgres rolls back.
pub struct KeyedTransaction<'a> {
    connection: super::Loan<'a>,
    /// Ids and outcomes of the jobs.
    pub stored: StoredKeyed,
    open: bool,
}

impl Drop for KeyedTransaction<'_> {
    fn drop(&mut self) {
        if self.open {
            self.connection.mark_broken();
        }
    }
}

impl Store {
    /// Deletes the given job keys if they were held for a time after the end of their job, and that time is over.
    pub async fn free_held_keys(&self, types: &[TypeId], keys: &[&str]) -> Result<(), StoreError> {
        self.hot().await?.query(Statement::FreeHeldKeys, &[&types, &keys]).await.map(drop)
    }

    /// Returns the job ids that the first request with each of these request keys got, as request key → (body hash,
    /// ids).
    pub async fn repeated_requests(&self, keys: &[&str]) -> Result<HashMap<String, (Vec<u8>, Vec<i64>)>, StoreError> {
        let rows = self.hot().await?.query(Statement::RepeatedRequests, &[&keys]).await?;
        Ok(rows.iter().map(|r| (r.get("key"), (r.get("body_hash"), r.get("ids")))).collect())
    }
}

impl KeyedTransaction<'_> {
    /// Returns the job ids that the first request with each of these request keys got, as request key → (body hash,
    /// ids).
    pub async fn repeated(&mut self, keys: &[&str]) -> Result<HashMap<String, (Vec<u8>, Vec<i64>)>, StoreError> {
        let rows = self.connection.query(Statement::RepeatedRequests, &[&keys]).await?;
        Ok(rows.iter().map(|r| (r.get("key"), (r.get("body_hash"), r.get("ids")))).collect())
    }

    /// Returns the ids of the jobs that hold these job keys now.
    pub async fn key_holders(
        &mut self,
        types: &[TypeId],
        keys: &[&str],
    ) -> Result<HashMap<(TypeId, String), i64>, StoreError> {
        let rows = self.connection.query(Statement::KeyHolders, &[&types, &keys]).await?;
        Ok(rows.iter().map(|r| ((r.get("type_id"), r.get("key")), r.get("job_id"))).collect())
    }

    /// Replaces the job ids that a repeat of the request with this key will return.
    pub async fn amend(&mut self, key: &str, ids: &[i64]) -> Result<(), StoreError> {
        self.connection.query(Statement::AmendRequest, &[&key, &ids]).await.map(drop)
    }

    pub async fn commit(mut self) -> Result<(), StoreError> {
        self.connection.batch("COMMIT").await?;
        self.open = false;
        Ok(())
    }

    /// Rolls the enqueue back. The connection can be reused.
    pub async fn roll_back(mut self) {
        self.connection.roll_back().await;
        self.open = false;
    }
}
