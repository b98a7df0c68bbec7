//! What few jobs ask for: keys with policies, expiry, fair turns, stages, dependencies, limits, waiting.

mod dependencies;
mod fair;
mod keys;
mod limits;
mod limits_hold;
mod model;
mod pairs;
mod races;
mod stages;
mod time;
mod together;
mod wait;

use howdah_proto::v1::{EnqueueJobsRequest, EnqueuedJob, Job, JobState, NewJob};
use tonic::Status;

use crate::support::{TestBroker, TestDatabase, jobs_client};

/// Enqueues, one request.
async fn enqueue(broker: &TestBroker, jobs: Vec<NewJob>) -> Result<Vec<EnqueuedJob>, Status> {
    let request = EnqueueJobsRequest { jobs, request_key: String::new() };
    jobs_client(&broker.grpc).await.enqueue_jobs(request).await.map(|answer| answer.into_inner().jobs)
}

/// Enqueues, and returns the ids.
async fn ids(broker: &TestBroker, jobs: Vec<NewJob>) -> Vec<i64> {
    enqueue(broker, jobs).await.expect("enqueue").iter().map(|job| job.id).collect()
}

async fn get(broker: &TestBroker, id: i64) -> Job {
    let request = howdah_proto::v1::GetJobRequest { id };
    jobs_client(&broker.grpc).await.get_job(request).await.expect("get").into_inner().job.expect("a job")
}

/// Waits until a job is in a state.
async fn until_state(database: &TestDatabase, id: i64, state: JobState) {
    let name = state.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase();
    let sql = format!("SELECT EXISTS (SELECT FROM howdah.job WHERE id = {id} AND state = '{name}')");
    crate::support::until(database, &format!("{name} of job {id}"), &sql).await;
}
