//! Tests failing jobs: when they are retried, where they go after the last attempt, and how operators handle them.

mod dead_days; // discarded after some days
mod dead; // retried, discarded, cancelled; by id, type and error group
mod fallback; // fallbacks of dead jobs
mod groups; // groups of errors
mod newest; // newest failures first; jobs of all types
mod policies; // retry delays
mod coordinated; // with limits, stages, dependencies

use howdah_proto::v1::{JobFilter, RetryJobsRequest, RetryJobsResponse};

use crate::support::*;

async fn retry(broker: &TestBroker, request: RetryJobsRequest) -> RetryJobsResponse {
    let answer = with_timeout("an answer", broker.jobs().retry_jobs(request)).await;
    answer.expect("retried").into_inner()
}

/// A retry request with default values: retry now, with the stored payload. Tests change some fields.
const RETRY: RetryJobsRequest =
    RetryJobsRequest { filter: None, start: None, payload: None, page_token: String::new() };

fn of_ids(ids: &[i64]) -> Option<JobFilter> {
    Some(JobFilter { ids: ids.to_vec(), ..Default::default() })
}

fn of_type(task_type: &str) -> JobFilter {
    JobFilter { task_type: task_type.into(), ..Default::default() }
}

/// Inserts dead jobs of a type whose error is `error` with the job's id in place of `#`.
async fn add_dead_jobs(database: &TestDatabase, task_type: &str, count: i32, error: &str) {
    let sql = "
        WITH type AS (INSERT INTO howdah.task_type (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = $1 RETURNING id),
        ids AS (SELECT nextval('howdah.job_id') AS id FROM generate_series(1, $2::integer))
        INSERT INTO howdah.dead (id, rank, created, died, leased_at, type_id, attempt, max_attempts, priority, failures, payload)
        SELECT i.id, 0, now(), now(), now(), t.id, 10, 10, 0,
               howdah.add_failure(NULL, 10::smallint, replace($3, '#', i.id::text), now()), 'p'
        FROM ids i, type t";
    database.connect().await.execute(sql, &[&task_type, &count, &error]).await.expect("dead jobs");
}
