//! What becomes of jobs that fail: when they are tried again, where they go when they are given up, and what
//! people do with them then.

mod dead; // retried, discarded, cancelled; by id, type and error group
mod fallback; // every way to death leads there
mod groups; // like errors together
mod policies; // delays, read from the table
mod special; // with limits, stages, dependencies

use howdah_proto::v1::{
    EnqueueJobsRequest, GetJobRequest, Job, JobFilter, LeasedJob, Nack, NewJob, Outcome, RetryJobsRequest,
    RetryJobsResponse, SettleStatus, TaskTypeSettings, UpdateTaskTypeRequest, outcome,
};

use crate::support::{TestBroker, TestDatabase, Worker, jobs_client, soon, task_types_client};

async fn enqueue(broker: &TestBroker, jobs: Vec<NewJob>) -> Vec<i64> {
    let request = EnqueueJobsRequest { jobs, ..Default::default() };
    let answer = soon("an answer", jobs_client(&broker.grpc).await.enqueue_jobs(request)).await;
    answer.expect("enqueue").into_inner().jobs.iter().map(|j| j.id).collect()
}

async fn get(broker: &TestBroker, id: i64) -> Job {
    let answer = jobs_client(&broker.grpc).await.get_job(GetJobRequest { id }).await;
    answer.expect("a job").into_inner().job.expect("a job")
}

async fn set(broker: &TestBroker, task_type: &str, settings: TaskTypeSettings) {
    let request = UpdateTaskTypeRequest { task_type: task_type.into(), settings: Some(settings) };
    task_types_client(&broker.grpc).await.update_task_type(request).await.expect("settings");
}

/// A failure by the retry policy, or for good.
fn failed(job: &LeasedJob, error: &str, no_retry: bool) -> Outcome {
    let nack = Nack { error: error.into(), no_retry, ..Nack::default() };
    Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Nack(nack)) }
}

/// Fails a job, and waits until that is committed.
async fn fail(worker: &mut Worker, job: &LeasedJob, error: &str, no_retry: bool) {
    worker.settle(vec![failed(job, error, no_retry)]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
}

async fn retry(broker: &TestBroker, request: RetryJobsRequest) -> RetryJobsResponse {
    let answer = soon("an answer", jobs_client(&broker.grpc).await.retry_jobs(request)).await;
    answer.expect("retried").into_inner()
}

fn of_ids(ids: &[i64]) -> Option<JobFilter> {
    Some(JobFilter { ids: ids.to_vec(), ..Default::default() })
}

fn of_type(task_type: &str) -> JobFilter {
    JobFilter { task_type: task_type.into(), ..Default::default() }
}

/// Dead jobs of a type that failed of this error, `#` in it being the job's id.
async fn bury(database: &TestDatabase, task_type: &str, count: i32, error: &str) {
    let sql = "
        WITH type AS (INSERT INTO howdah.task_type (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = $1 RETURNING id),
        ids AS (SELECT nextval('howdah.job_id') AS id FROM generate_series(1, $2::integer))
        INSERT INTO howdah.dead (id, rank, created, died, leased_at, type_id, attempt, max_attempts, priority, failures, payload)
        SELECT i.id, 0, now(), now(), now(), t.id, 10, 10, 0,
               howdah.add_failure(NULL, 10::smallint, replace($3, '#', i.id::text), now()), 'p'
        FROM ids i, type t";
    database.connect().await.execute(sql, &[&task_type, &count, &error]).await.expect("dead jobs");
}
