//! Enqueues jobs of any kind: key policies, stages, dependencies, limits, turns.

use postgres_types::Json;
use serde_json::{Map, Value, json};

use super::{
    Connection, RequestColumns, Statement, Store, StoreError,
    coordination::Wakeups,
    enqueue::{Columns, PlainJob},
    enqueue_keyed::{KeyedJob, start_columns},
};
use crate::job::{Coordination, EnqueueOutcome, Enqueued, Expiry, KeyPolicy, Start, TypeId};

/// What became of the jobs, in their order.
#[derive(Debug)]
pub struct StoredCoordinated {
    /// `None`: its request was made before.
    pub jobs: Vec<Option<Enqueued>>,
    /// What the brokers must know.
    pub wakeups: Wakeups,
}

impl Store {
    /// Stores requests of which some jobs ask for more, in one statement.
    pub async fn enqueue_coordinated(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<StoredCoordinated, StoreError> {
        insert_coordinated(&mut *self.hot().await?, jobs, requests).await
    }
}

/// Stores whatever jobs, in one statement.
pub(super) async fn insert_coordinated(
    connection: &mut Connection,
    jobs: &[KeyedJob<'_>],
    requests: &RequestColumns<'_>,
) -> Result<StoredCoordinated, StoreError> {
    let c = Columns::of(&jobs.iter().map(|j| j.plain));
    let request_no: Vec<i32> = jobs.iter().map(|j| j.request_no).collect();
    let key: Vec<Option<&str>> = jobs.iter().map(|j| j.plain.job.key.as_deref()).collect();
    let (run_at_us, delay_ms) = start_columns(jobs);
    let (options, extra) = json_columns(jobs);
    let rows = connection
        .query(
            Statement::EnqueueCoordinated,
            &[
                &request_no,
                &c.type_id,
                &c.rank_base,
                &c.priority,
                &c.max_attempts,
                &c.timeout_ms,
                &key,
                &c.headers,
                &options,
                &c.payload,
                &run_at_us,
                &delay_ms,
                &extra,
                &requests.request_no,
                &requests.key,
                &requests.body_hash,
                &c.out_of_line_ordinal,
                &c.out_of_line_data,
            ],
        )
        .await?;
    let mut wakeups = Wakeups::default();
    let mut stored: Vec<(i32, Option<Enqueued>)> = rows
        .iter()
        .filter(|row| !wakeups.add(row))
        .map(|row| (row.get("ordinal"), enqueued(row.get("id"), row.get("outcome"))))
        .collect();
    stored.sort_unstable_by_key(|(ordinal, _)| *ordinal);
    Ok(StoredCoordinated { jobs: stored.into_iter().map(|(_, job)| job).collect(), wakeups })
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

type JsonColumn = Vec<Option<Json<Value>>>;

/// What is kept with the jobs, and what only their enqueue must know.
fn json_columns(jobs: &[KeyedJob<'_>]) -> (JsonColumn, JsonColumn) {
    let mut first = 0;
    let mut columns = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len()));
    for (i, job) in jobs.iter().enumerate() {
        // Indexes in a request become ordinals in the statement.
        if i > 0 && jobs[i - 1].request_no != job.request_no {
            first = i;
        }
        let coordination = job.plain.job.coordination.as_deref();
        columns.0.push(options(job.plain, coordination));
        columns.1.push(coordination.and_then(|asked| extra(asked, first)));
    }
    columns
}

fn options(job: PlainJob<'_>, coordination: Option<&Coordination>) -> Option<Json<Value>> {
    let own = job.options().and_then(|Json(options)| serde_json::to_value(options).ok());
    let mut all = match own {
        Some(Value::Object(own)) => own,
        _ => Map::new(),
    };
    if let Some(coordination) = coordination {
        // Its turn is settled when it becomes ready: coordinated jobs are promoted by a function.
        let turn_later = coordination.fair_key.is_some() && job.job.start != Start::Now;
        if coordination.is_marked() || turn_later {
            all.insert("coordinated".to_owned(), true.into());
        }
        kept(coordination, job.stages, &mut all);
    }
    (!all.is_empty()).then_some(Json(Value::Object(all)))
}

fn kept(coordination: &Coordination, stages: &[TypeId], all: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| drop(all.insert(name.to_owned(), value));
    if let Some(key) = &coordination.limit_key {
        put("limit_key", key.as_str().into());
    }
    if let Some(key) = &coordination.fair_key {
        put("fair_key", key.as_str().into());
    }
    if !stages.is_empty() {
        put("next_stages", stages.into());
        put("stage_payload", if coordination.same_payload { "unchanged" } else { "result" }.into());
    }
    if !coordination.after.is_empty() || !coordination.after_places.is_empty() {
        put("on_dependency_failure", coordination.on_failure.name().into());
    }
    if let Some(id) = coordination.parent_id {
        put("parent_id", id.into());
    }
    if let Some(Expiry::At(us)) = coordination.expiry {
        put("expire_us", us.into());
    }
}

fn extra(coordination: &Coordination, first: usize) -> Option<Json<Value>> {
    let mut all = Map::new();
    let mut put = |name: &str, value: Value| drop(all.insert(name.to_owned(), value));
    if coordination.key_policy != KeyPolicy::Keep {
        put("key_policy", coordination.key_policy.name().into());
    }
    if let Some(version) = coordination.key_version {
        put("key_version", version.into());
    }
    let ms = |d: std::time::Duration| json!(d.as_millis() as i64);
    if let Some(hold) = coordination.key_hold {
        put("key_hold_ms", ms(hold));
    }
    if let Some(limit) = coordination.debounce_limit {
        put("key_debounce_limit_ms", ms(limit));
    }
    if let Some(Expiry::After(after)) = coordination.expiry {
        put("expire_after_ms", ms(after));
    }
    if !coordination.after.is_empty() {
        put("after", coordination.after.as_slice().into());
    }
    if !coordination.after_places.is_empty() {
        put("after_ordinals", coordination.after_places.iter().map(|place| first + place + 1).collect());
    }
    (!all.is_empty()).then_some(Json(Value::Object(all)))
}
