//! The hot path of enqueueing: stores jobs as ready, or directly as leased if a worker of this broker has capacity.

use std::{borrow::Cow, collections::HashMap, time::SystemTime};

use howdah_core::job::{JobOptions, Lease, NewJob, Tokens, TypeId};
use postgres_types::Json;
use tokio_postgres::Row;

use super::{Statement, Store, StoreError, connection::Param};

/// A job with the settings that apply to it.
#[derive(Clone, Copy)]
pub struct PlainJob<'a> {
    pub job: &'a NewJob,
    pub type_id: TypeId,
    /// Maximum attempts, from the job, its task type or the broker.
    pub max_attempts: i16,
    /// Base of the rank in µs: priority times the priority step of the task type.
    pub rank_base: i64,
    /// Whether the payload is stored once, in the table `payload`, and not in the job row, which moves between tables.
    pub out_of_line: bool,
}

impl<'a> PlainJob<'a> {
    pub(super) fn payload(self) -> &'a [u8] {
        if self.out_of_line { &[] } else { &self.job.payload }
    }

    pub(super) fn options(self) -> Option<Json<Cow<'a, JobOptions>>> {
        let own = self.job.options.as_deref();
        if self.out_of_line {
            let payload_bytes = Some(self.job.payload.len() as i64);
            return Some(Json(Cow::Owned(JobOptions { payload_bytes, ..own.cloned().unwrap_or_default() })));
        }
        own.map(|options| Json(Cow::Borrowed(options)))
    }
}

/// Ids of stored plain jobs, in the order of the request.
#[derive(Debug)]
pub struct StoredPlain {
    /// One id per job.
    pub ids: Vec<i64>,
    /// Database time in µs since 1970. The rank of a job is `rank_base + now_us`.
    pub now_us: i64,
}

/// Leases of jobs that were stored and leased in one statement, in the order of the request.
#[derive(Debug)]
pub struct StoredDirect {
    /// One lease per job.
    pub leases: Vec<Lease>,
    /// Database time.
    pub now: SystemTime,
}

/// A JSON column. `None` if all of its values are null.
type JsonColumn<T> = Option<Vec<Option<Json<T>>>>;

/// Options of the jobs as a column. Options are copied only for jobs whose options are changed before they are stored.
pub(super) type OptionsColumn<'a> = JsonColumn<Cow<'a, JobOptions>>;

/// Parameter columns that the batch statements for enqueueing share.
pub(super) struct Columns<'a> {
    pub(super) type_id: Vec<i32>,
    pub(super) rank_base: Vec<i64>,
    pub(super) priority: Vec<i16>,
    pub(super) max_attempts: Vec<i16>,
    pub(super) timeout_ms: Option<Vec<Option<i64>>>,
    pub(super) headers: JsonColumn<&'a HashMap<String, String>>,
    pub(super) options: OptionsColumn<'a>,
    pub(super) payload: Vec<&'a [u8]>,
    pub(super) out_of_line_ordinal: Option<Vec<i32>>,
    pub(super) out_of_line_data: Option<Vec<&'a [u8]>>,
    /// Types in the batch, with the number of jobs per type in `counted_jobs`.
    counted_types: Vec<TypeId>,
    counted_jobs: Vec<i32>,
}

impl<'a> Columns<'a> {
    pub(super) fn new(jobs: &(impl Iterator<Item = PlainJob<'a>> + Clone)) -> Self {
        let ms = |job: &NewJob| job.timeout.map(|t| t.as_millis() as i64);
        let out_of_line = || (1..).zip(jobs.clone()).filter(|(_, job): &(usize, PlainJob<'_>)| job.out_of_line);
        let (counted_types, counted_jobs) = by_type(jobs.clone().map(|j| j.type_id));
        Self {
            type_id: jobs.clone().map(|j| j.type_id).collect(),
            rank_base: jobs.clone().map(|j| j.rank_base).collect(),
            priority: jobs.clone().map(|j| j.job.priority).collect(),
            max_attempts: jobs.clone().map(|j| j.max_attempts).collect(),
            timeout_ms: unless_all_none(jobs.clone().map(|j| ms(j.job))),
            headers: unless_all_none(jobs.clone().map(|j| (!j.job.headers.is_empty()).then_some(Json(&j.job.headers)))),
            options: unless_all_none(jobs.clone().map(PlainJob::options)),
            payload: jobs.clone().map(PlainJob::payload).collect(),
            out_of_line_ordinal: unless_empty(out_of_line().map(|(place, _)| place as i32)),
            out_of_line_data: unless_empty(out_of_line().map(|(_, job)| &job.job.payload[..])),
            counted_types,
            counted_jobs,
        }
    }
}

/// Returns the distinct types, and the number of jobs of each.
fn by_type(types: impl Iterator<Item = TypeId>) -> (Vec<TypeId>, Vec<i32>) {
    let mut jobs: HashMap<TypeId, i32> = HashMap::with_capacity(1);
    // Jobs of one type mostly follow one another, so a sequence of equal types costs one map access.
    let (mut last, mut run) = (None, 0);
    for type_id in types {
        if last != Some(type_id) {
            if let Some(last) = last {
                *jobs.entry(last).or_default() += run;
            }
            (last, run) = (Some(type_id), 0);
        }
        run += 1;
    }
    if let Some(last) = last {
        *jobs.entry(last).or_default() += run;
    }
    jobs.into_iter().unzip()
}

fn unless_empty<T>(values: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let values: Vec<T> = values.collect();
    (!values.is_empty()).then_some(values)
}

/// Returns `None` if all values are `None`, so that an unused column is not sent.
fn unless_all_none<T>(values: impl Iterator<Item = Option<T>> + Clone) -> Option<Vec<Option<T>>> {
    values.clone().any(|v| v.is_some()).then(|| values.collect())
}

/// Request key and body hash of a request with a single job. Both are `None` if the request is not idempotent.
#[derive(Default)]
struct OneRequest<'a> {
    key: Option<&'a str>,
    body_hash: Option<&'a [u8]>,
}

/// Idempotent requests of a batch: request key, body hash, and first and last position of the jobs of the request.
#[derive(Default)]
pub struct RequestKeys<'a>(Vec<(&'a str, &'a [u8], i32, i32)>);

impl<'a> RequestKeys<'a> {
    /// Adds a request: its key, its body hash, the number of jobs before it in the batch, and the number of its jobs.
    pub fn push(&mut self, key: &'a str, body_hash: &'a [u8], before: usize, jobs: usize) {
        self.0.push((key, body_hash, before as i32 + 1, (before + jobs) as i32));
    }

    /// Returns the request of a statement with a single job. `None` if the idempotent requests have more than one job.
    fn of_one(&self) -> Option<OneRequest<'a>> {
        match self.0[..] {
            [] => Some(OneRequest::default()),
            [(key, body_hash, 1, 1)] => Some(OneRequest { key: Some(key), body_hash: Some(body_hash) }),
            _ => None,
        }
    }

    /// Returns the requests as parameter columns, sorted by request key.
    fn columns(mut self) -> RequestColumns<'a> {
        self.0.sort_unstable_by_key(|(key, ..)| *key);
        let some = !self.0.is_empty();
        RequestColumns {
            key: some.then(|| self.0.iter().map(|r| r.0).collect()),
            body_hash: some.then(|| self.0.iter().map(|r| r.1).collect()),
            first: some.then(|| self.0.iter().map(|r| r.2).collect()),
            last: some.then(|| self.0.iter().map(|r| r.3).collect()),
        }
    }
}

/// Parameter columns of idempotent requests. All are `None` if there is no request key.
struct RequestColumns<'a> {
    key: Option<Vec<&'a str>>,
    body_hash: Option<Vec<&'a [u8]>>,
    first: Option<Vec<i32>>,
    last: Option<Vec<i32>>,
}

/// Parameters of a single job, for statements that Postgres executes with less fixed cost than those for batches.
struct OneJob<'a> {
    job: PlainJob<'a>,
    timeout_ms: Option<i64>,
    headers: Option<Json<&'a HashMap<String, String>>>,
    options: Option<Json<Cow<'a, JobOptions>>>,
    payload: &'a [u8],
    request: OneRequest<'a>,
}

impl<'a> OneJob<'a> {
    /// Returns the parameters if there is exactly one job and its payload is stored inline.
    fn new(jobs: &[PlainJob<'a>], requests: &RequestKeys<'a>) -> Option<Self> {
        let &[job] = jobs else { return None };
        if job.out_of_line {
            return None;
        }
        let request = requests.of_one()?;
        Some(Self {
            job,
            timeout_ms: job.job.timeout.map(|timeout| timeout.as_millis() as i64),
            headers: (!job.job.headers.is_empty()).then_some(Json(&job.job.headers)),
            options: job.options(),
            payload: job.payload(),
            request,
        })
    }

    fn params(&self) -> [Param<'_>; 10] {
        [
            &self.job.type_id,
            &self.job.rank_base,
            &self.job.job.priority,
            &self.job.max_attempts,
            &self.timeout_ms,
            &self.headers,
            &self.options,
            &self.payload,
            &self.request.key,
            &self.request.body_hash,
        ]
    }
}

macro_rules! params {
    ($c:ident, $r:ident) => {
        [
            &$c.type_id,
            &$c.rank_base,
            &$c.priority,
            &$c.max_attempts,
            &$c.timeout_ms,
            &$c.headers,
            &$c.options,
            &$c.payload,
            &$r.key,
            &$r.body_hash,
            &$r.first,
            &$r.last,
            &$c.out_of_line_ordinal,
            &$c.out_of_line_data,
            &$c.counted_types,
            &$c.counted_jobs,
        ] as [Param<'_>; 16]
    };
}

impl Store {
    /// Stores jobs as ready, in one statement. Plain jobs only: without a key, a start time or coordination.
    pub async fn enqueue_plain(
        &self,
        jobs: &[PlainJob<'_>],
        requests: RequestKeys<'_>,
    ) -> Result<StoredPlain, StoreError> {
        if let Some(one) = OneJob::new(jobs, &requests) {
            let row = self.hot().await?.query_one(Statement::EnqueueOne, &one.params()).await?;
            return Ok(StoredPlain { ids: vec![row.get("id")], now_us: row.get("now_us") });
        }
        let (c, r) = (Columns::new(&jobs.iter().copied()), requests.columns());
        let row = self.hot().await?.query_one(Statement::Enqueue, &params!(c, r)).await?;
        Ok(StoredPlain { ids: row.get("ids"), now_us: row.get("now_us") })
    }

    /// Stores jobs and leases them to this broker in one statement, each with its fencing token. `None` if the broker's
    /// lease has expired; nothing is stored then.
    pub async fn enqueue_direct(
        &self,
        jobs: &[PlainJob<'_>],
        requests: RequestKeys<'_>,
        broker_id: i32,
        tokens: &Tokens,
    ) -> Result<Option<StoredDirect>, StoreError> {
        if let (Some(one), [token]) = (OneJob::new(jobs, &requests), &tokens.as_vec()[..]) {
            let params = [&one.params()[..], &[&broker_id as Param<'_>, token]].concat();
            let rows = self.hot().await?.query(Statement::EnqueueDirectOne, &params).await?;
            let stored = |row: &Row| StoredDirect {
                leases: vec![Lease { id: row.get("id"), token: *token }],
                now: row.get("now"),
            };
            return Ok(rows.first().map(stored));
        }
        let (c, r) = (Columns::new(&jobs.iter().copied()), requests.columns());
        let mut params = params!(c, r).to_vec();
        params.extend([&broker_id as Param<'_>, tokens.as_vec()]);
        let row = self.hot().await?.query_one(Statement::EnqueueDirect, &params).await?;
        let Some(ids) = row.get::<_, Option<Vec<i64>>>("ids") else {
            return Ok(None);
        };
        let leases = ids.into_iter().zip(tokens.as_vec()).map(|(id, &token)| Lease { id, token }).collect();
        Ok(Some(StoredDirect { leases, now: row.get("now") }))
    }
}
