//! Enqueues jobs that need more than an insert. Keyed jobs have keys, start times or request keys; coordinated jobs have key
//! policies, stages, dependencies, limits or fair keys. The statement decides the outcome of each job.

use std::collections::HashMap;

use howdah_core::job::{EnqueueOutcome, Enqueued, RequestKey, Start, TypeId};
use postgres_types::Json;
use tokio_postgres::Row;

use super::{
    Actor, Connection, Statement, Store, StoreError,
    audit::Change,
    connection::Params,
    coordination::Wakeups,
    enqueue::{Columns, OptionsColumn, PlainJob},
    transaction::{Transaction, retry_conflicts},
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

impl<'a> RequestColumns<'a> {
    /// Adds the request with this number in the batch, if it is idempotent.
    pub fn push(&mut self, request_no: i32, request: Option<&'a RequestKey>) {
        if let Some(RequestKey { key, body_hash }) = request {
            self.request_no.push(request_no);
            self.key.push(key);
            self.body_hash.push(body_hash);
        }
    }
}

/// The first request with each request key: body hash and job ids.
pub type FirstRequests = HashMap<String, (Vec<u8>, Vec<i64>)>;

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

/// Outcomes of the jobs, in the order of the request.
#[derive(Debug)]
pub struct StoredCoordinated {
    /// One outcome per job. `None` if its request repeats an earlier one with the same request key, so that the job was
    /// not stored.
    pub jobs: Vec<Option<Enqueued>>,
    pub wakeups: Wakeups,
}

impl Store {
    /// Stores requests that use keys or start times, in a transaction that the caller commits. Before the commit, the
    /// caller can change the answer that a repeat of a request will get (`amend`).
    pub async fn enqueue_keyed(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<KeyedTransaction<'_>, StoreError> {
        let mut transaction = self.begin().await?;
        match transaction.insert(Statement::EnqueueKeyed, jobs, requests).await {
            Ok(rows) => {
                let now_us = rows.first().map_or(0, |row| row.get("now_us"));
                let mut stored: Vec<(i64, KeyedOutcome)> = rows.iter().map(outcome).collect();
                stored.sort_unstable_by_key(|(id, _)| *id);
                Ok(KeyedTransaction { transaction, stored: StoredKeyed { jobs: stored, now_us } })
            }
            Err(error) => {
                transaction.roll_back().await;
                Err(error)
            }
        }
    }

    /// Stores requests with at least one coordinated job, in one statement.
    pub async fn enqueue_coordinated(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<StoredCoordinated, StoreError> {
        self.hot().await?.enqueue_coordinated(jobs, requests).await
    }

    /// Stores copies of finished jobs and the audit row in one transaction. Each job is a separate request: either no job
    /// has a request key, or each has one.
    pub async fn rerun_jobs(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
        by: &Actor,
    ) -> Result<StoredCoordinated, StoreError> {
        let rerun = || async move {
            let mut transaction = self.begin().await?;
            let stored = transaction.enqueue_coordinated(jobs, requests).await?;
            // A job whose key another job held was not stored. Its request key is deleted, so that a repeated call tries
            // it again.
            let kept = |job: &Option<Enqueued>| job.is_some_and(|job| job.outcome == EnqueueOutcome::Kept);
            let unused: Vec<&str> =
                requests.key.iter().zip(&stored.jobs).filter(|(_, job)| kept(job)).map(|(key, _)| *key).collect();
            if !unused.is_empty() {
                transaction.run(Statement::ForgetRequests, &[&unused]).await?;
            }
            let new = jobs.iter().zip(&stored.jobs).filter_map(|(job, stored)| {
                let stored = stored.filter(|stored| stored.is_new())?;
                Some((stored.id, job.plain.type_id))
            });
            transaction.record(by, &Change::of_jobs(new)).await?;
            transaction.commit().await?;
            Ok(stored)
        };
        retry_conflicts(rerun).await
    }

    /// Deletes the given job keys if they were held for a time after the end of their job, and that time is over.
    pub async fn free_held_keys(&self, types: &[TypeId], keys: &[&str]) -> Result<(), StoreError> {
        self.hot().await?.run(Statement::FreeHeldKeys, &[&types, &keys]).await
    }

    /// Returns the first request with each of these request keys.
    pub async fn repeated_requests(&self, keys: &[&str]) -> Result<FirstRequests, StoreError> {
        self.hot().await?.repeated_requests(keys).await
    }
}

impl Connection {
    /// Stores jobs with one of the two statements, which have the same parameters.
    async fn insert(
        &mut self,
        statement: Statement,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut c = Columns::new(&jobs.iter().map(|j| j.plain));
        let request_no: Vec<i32> = jobs.iter().map(|j| j.request_no).collect();
        let key: Vec<Option<&str>> = jobs.iter().map(|j| j.plain.job.key.as_deref()).collect();
        let (run_at_us, delay_ms) = start_columns(jobs);
        renumber(&mut c.options, jobs);
        let params: Params<'_> = &[
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
        ];
        self.query(statement, params).await
    }

    /// Stores jobs of any kind in one statement.
    pub(super) async fn enqueue_coordinated(
        &mut self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<StoredCoordinated, StoreError> {
        let rows = self.insert(Statement::EnqueueCoordinated, jobs, requests).await?;
        let mut wakeups = Wakeups::default();
        let mut stored: Vec<(i32, Option<Enqueued>)> = rows
            .iter()
            .filter(|row| !wakeups.add(row))
            .map(|row| (row.get("ordinal"), enqueued(row.get("id"), row.get("outcome"))))
            .collect();
        stored.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        Ok(StoredCoordinated { jobs: stored.into_iter().map(|(_, job)| job).collect(), wakeups })
    }

    /// Returns the first request with each of these request keys.
    pub(super) async fn repeated_requests(&mut self, keys: &[&str]) -> Result<FirstRequests, StoreError> {
        let rows = self.query(Statement::RepeatedRequests, &[&keys]).await?;
        Ok(rows.iter().map(|row| (row.get("key"), (row.get("body_hash"), row.get("ids")))).collect())
    }
}

/// Returns the start times of jobs as two columns: absolute in µs since 1970, or as a delay in ms.
fn start_columns(jobs: &[KeyedJob<'_>]) -> (Vec<Option<i64>>, Vec<Option<i64>>) {
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

fn enqueued(id: i64, outcome: &str) -> Option<Enqueued> {
    let outcome = match outcome {
        "repeated" => return None,
        "kept" => EnqueueOutcome::Kept,
        "replaced" => EnqueueOutcome::Replaced,
        "stale" => EnqueueOutcome::Stale,
        "next" => EnqueueOutcome::Next,
        "debounced" => EnqueueOutcome::Debounced,
        _ => EnqueueOutcome::New,
    };
    Some(Enqueued { id, outcome })
}

/// Converts references between jobs of one request. Job options contain the index of the other job in the request; a
/// statement with several requests needs its position in the statement.
fn renumber(options: &mut OptionsColumn<'_>, jobs: &[KeyedJob<'_>]) {
    let mut first = 0;
    for (i, options) in options.iter_mut().flatten().enumerate() {
        if i > 0 && jobs[i - 1].request_no != jobs[i].request_no {
            first = i;
        }
        if let Some(Json(options)) = options.as_mut().filter(|Json(options)| !options.after_ordinals.is_empty()) {
            options.to_mut().after_ordinals.iter_mut().for_each(|ordinal| *ordinal += first);
        }
    }
}

/// An uncommitted enqueue of keyed jobs. A drop without commit closes the connection, so Postgres rolls back.
pub struct KeyedTransaction<'a> {
    transaction: Transaction<'a>,
    /// Ids and outcomes of the jobs.
    pub stored: StoredKeyed,
}

impl KeyedTransaction<'_> {
    /// Returns the first request with each of these request keys.
    pub async fn repeated(&mut self, keys: &[&str]) -> Result<FirstRequests, StoreError> {
        self.transaction.repeated_requests(keys).await
    }

    /// Returns the ids of the jobs that hold these job keys now.
    pub async fn key_holders(
        &mut self,
        types: &[TypeId],
        keys: &[&str],
    ) -> Result<HashMap<(TypeId, String), i64>, StoreError> {
        let holders: Vec<(TypeId, String, i64)> =
            self.transaction.list(Statement::KeyHolders, &[&types, &keys]).await?;
        Ok(holders.into_iter().map(|(type_id, key, id)| ((type_id, key), id)).collect())
    }

    /// Replaces the job ids that a repeat of the request with this key will return.
    pub async fn amend(&mut self, key: &str, ids: &[i64]) -> Result<(), StoreError> {
        self.transaction.run(Statement::AmendRequest, &[&key, &ids]).await
    }

    pub async fn commit(self) -> Result<(), StoreError> {
        self.transaction.commit().await
    }

    /// Rolls the enqueue back. The connection can be reused.
    pub async fn roll_back(self) {
        self.transaction.roll_back().await;
    }
}
