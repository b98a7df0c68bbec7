//! Enqueues jobs of any kind: key policies, stages, dependencies, limits, fair keys.

use howdah_core::job::{EnqueueOutcome, Enqueued};
use postgres_types::Json;

use super::{
    Connection, RequestColumns, Statement, Store, StoreError,
    coordination::Wakeups,
    enqueue::{Columns, OptionsColumn},
    enqueue_keyed::{KeyedJob, start_columns},
};

/// Outcomes of the jobs, in the order of the request.
#[derive(Debug)]
pub struct StoredCoordinated {
    /// One outcome per job. `None` if its request repeats an earlier one with the same request key, so that the job was
    /// not stored.
    pub jobs: Vec<Option<Enqueued>>,
    pub wakeups: Wakeups,
}

impl Store {
    /// Stores requests with at least one coordinated job, in one statement.
    pub async fn enqueue_coordinated(
        &self,
        jobs: &[KeyedJob<'_>],
        requests: &RequestColumns<'_>,
    ) -> Result<StoredCoordinated, StoreError> {
        insert_coordinated(&mut *self.hot().await?, jobs, requests).await
    }
}

/// Stores jobs of any kind in one statement.
pub(super) async fn insert_coordinated(
    connection: &mut Connection,
    jobs: &[KeyedJob<'_>],
    requests: &RequestColumns<'_>,
) -> Result<StoredCoordinated, StoreError> {
    let mut c = Columns::new(&jobs.iter().map(|j| j.plain));
    let request_no: Vec<i32> = jobs.iter().map(|j| j.request_no).collect();
    let key: Vec<Option<&str>> = jobs.iter().map(|j| j.plain.job.key.as_deref()).collect();
    let (run_at_us, delay_ms) = start_columns(jobs);
    renumber(&mut c.options, jobs);
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
