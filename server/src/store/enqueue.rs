//! Jobs on their way in: to ready, or to scheduled.

use std::collections::HashMap;

use postgres_types::Json;
use tokio_postgres::Row;

use super::{Connection, Statement, Store, StoreError};
use crate::job::{NewJob, Options, Start, TypeId, rank_base};

/// A job and what its type says of it.
#[derive(Clone, Copy)]
pub struct PlainJob<'a> {
    /// The job.
    pub job: &'a NewJob,
    /// Its type's key.
    pub type_id: TypeId,
    /// Its own, or its type's, or the broker's.
    pub max_attempts: i16,
}

/// A job of a request that uses keys or start times.
#[derive(Clone, Copy)]
pub struct FullJob<'a> {
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

/// Ids of plain jobs, in their order.
#[derive(Debug)]
pub struct StoredPlain {
    /// One a job.
    pub ids: Vec<i64>,
    /// The database's clock, µs after 1970: rank is `rank_base + now_us`.
    pub now_us: i64,
}

/// What the full statement decided of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its request was made before.
    RepeatedRequest,
    /// Another job has its key.
    KeyHeld,
    /// Stored in ready.
    Ready,
    /// Stored in scheduled, due so many µs from now.
    Scheduled(i64),
}

/// Ids and fates of full jobs, in their order.
#[derive(Debug)]
pub struct StoredFull {
    /// One a job.
    pub jobs: Vec<(i64, Fate)>,
    /// The database's clock, µs after 1970.
    pub now_us: i64,
}

/// A column of JSON, `None` when no job has any.
type JsonColumn<'a, T> = Option<Vec<Option<Json<&'a T>>>>;

/// The columns that both statements share.
struct Columns<'a> {
    type_id: Vec<i32>,
    rank_base: Vec<i64>,
    priority: Vec<i16>,
    max_attempts: Vec<i16>,
    timeout_ms: Option<Vec<Option<i64>>>,
    headers: JsonColumn<'a, HashMap<String, String>>,
    options: JsonColumn<'a, Options>,
    payload: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn of(jobs: impl Iterator<Item = PlainJob<'a>> + Clone) -> Self {
        let ms = |job: &NewJob| job.timeout.map(|t| t.as_millis() as i64);
        Self {
            type_id: jobs.clone().map(|j| j.type_id).collect(),
            rank_base: jobs.clone().map(|j| rank_base(j.job.priority)).collect(),
            priority: jobs.clone().map(|j| j.job.priority).collect(),
            max_attempts: jobs.clone().map(|j| j.max_attempts).collect(),
            timeout_ms: unless_all_none(jobs.clone().map(|j| ms(j.job))),
            headers: unless_all_none(jobs.clone().map(|j| (!j.job.headers.is_empty()).then_some(Json(&j.job.headers)))),
            options: unless_all_none(jobs.clone().map(|j| (!j.job.options.is_empty()).then_some(Json(&j.job.options)))),
            payload: jobs.map(|j| &j.job.payload[..]).collect(),
        }
    }
}

/// A column that few jobs use is not sent at all when none of the batch does.
fn unless_all_none<T>(values: impl Iterator<Item = Option<T>> + Clone) -> Option<Vec<Option<T>>> {
    values.clone().any(|v| v.is_some()).then(|| values.collect())
}

impl Store {
    /// Stores jobs that may run at once and have no key, in one statement.
    pub async fn enqueue_plain(&self, jobs: &[PlainJob<'_>]) -> Result<StoredPlain, StoreError> {
        let c = Columns::of(jobs.iter().copied());
        let mut connection = self.hot().await?;
        let row = connection
            .query_one(
                Statement::Enqueue,
                &[
                    &c.type_id,
                    &c.rank_base,
                    &c.priority,
                    &c.max_attempts,
                    &c.timeout_ms,
                    &c.headers,
                    &c.options,
                    &c.payload,
                ],
            )
            .await?;
        let mut ids: Vec<i64> = row.get("ids");
        ids.sort_unstable();
        Ok(StoredPlain { ids, now_us: row.get("now_us") })
    }

    /// Stores requests that use keys or start times, in one transaction; `amend` may look at what
    /// was decided and change what a repeat will be told.
    pub async fn enqueue_full(
        &self,
        jobs: &[FullJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<FullTransaction<'_>, StoreError> {
        let mut connection = self.hot().await?;
        connection.batch("BEGIN").await?;
        match insert_full(&mut connection, jobs, requests).await {
            Ok(stored) => Ok(FullTransaction { connection, stored, open: true }),
            Err(error) => {
                connection.roll_back().await;
                Err(error)
            }
        }
    }
}

async fn insert_full(
    connection: &mut Connection,
    jobs: &[FullJob<'_>],
    requests: &RequestColumns<'_>,
) -> Result<StoredFull, StoreError> {
    let c = Columns::of(jobs.iter().map(|j| j.plain));
    let request_no: Vec<i32> = jobs.iter().map(|j| j.request_no).collect();
    let key: Vec<Option<&str>> = jobs.iter().map(|j| j.plain.job.key.as_deref()).collect();
    let run_at_us: Vec<Option<i64>> = jobs
        .iter()
        .map(|j| match j.plain.job.start {
            Start::At(us) => Some(us),
            _ => None,
        })
        .collect();
    let delay_ms: Vec<Option<i64>> = jobs
        .iter()
        .map(|j| match j.plain.job.start {
            Start::After(delay) => Some(delay.as_millis() as i64),
            _ => None,
        })
        .collect();
    let rows = connection
        .query(
            Statement::EnqueueFull,
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
            ],
        )
        .await?;
    let now_us = rows.first().map_or(0, |row| row.get("now_us"));
    let mut stored: Vec<(i64, Fate)> = rows.iter().map(fate).collect();
    stored.sort_unstable_by_key(|(id, _)| *id);
    Ok(StoredFull { jobs: stored, now_us })
}

fn fate(row: &Row) -> (i64, Fate) {
    let fate = match row.get::<_, i32>("fate") {
        0 => Fate::RepeatedRequest,
        1 => Fate::KeyHeld,
        2 => Fate::Ready,
        _ => Fate::Scheduled(row.get("due_in_us")),
    };
    (row.get("id"), fate)
}

/// An enqueue that is not committed yet. Dropped, it is rolled back with its connection.
pub struct FullTransaction<'a> {
    connection: super::Loan<'a>,
    /// What was decided.
    pub stored: StoredFull,
    open: bool,
}

impl Drop for FullTransaction<'_> {
    fn drop(&mut self) {
        if self.open {
            self.connection.retire();
        }
    }
}

impl FullTransaction<'_> {
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
