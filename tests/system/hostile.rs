//! Tests malicious and malformed input: the caller gets a helpful error, the broker stores nothing, other clients are not
//! affected, and the broker's memory does not grow.

mod answers; // responses that must fit into a message
mod blocked; // backlogs while Postgres does not respond
mod bombs; // small on the wire, large in memory
mod budgets; // much memory for few bytes
mod database; // other logins of the database, and its settings
mod fields; // every field beyond its bounds
mod floods; // clients that neither wait nor read
pub mod http; // the HTTP port
mod http_floods; // the HTTP port under floods, and with other Host names
mod logs; // forged log lines
mod many_types; // too many task types
mod pages; // page tokens of another list
mod peers; // peers that use another protocol or violate HTTP/2
pub mod raw; // clients that send arbitrary bytes
mod received; // more large messages than the memory budget
pub mod secrets; // lease tokens stay secret
mod subscriptions; // every field of the stream's messages
mod task_types; // invalid names
mod texts; // quotes, NULs, a megabyte of error
mod tokens; // foreign and forged leases
mod tools; // health and reflection
mod wake; // junk notifications
mod wire; // bytes that are no messages

use std::future::Future;

use howdah_proto::{
    ERROR_DOMAIN,
    v1::{EnqueueJobsRequest, EnqueuedJob, GetJobRequest, Job, NewJob},
};
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt as _;

use crate::support::{TestDatabase, Worker, jobs_client, new_job, with_timeout};

/// A separate connection.
async fn channel(grpc: &str) -> Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(grpc.to_owned()).expect("address");
    with_timeout("a connection", endpoint.connect()).await.expect("connect")
}

/// Makes a call that must fail, and returns its error.
async fn refused<T>(call: impl Future<Output = Result<T, Status>>) -> Status {
    with_timeout("an answer", call).await.err().expect("it was accepted")
}

/// Asserts that an error is `INVALID_ARGUMENT`, names the field in message and details, and fits into the headers of a
/// response.
#[track_caller]
fn assert_names(status: &Status, field: &str) {
    assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
    assert!(status.message().starts_with(&format!("{field} ")), "{field}: {}", status.message());
    assert!(status.message().len() + status.details().len() < 6_000, "{field}: {}", status.message().len());
    let details = status.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    assert_eq!((info.domain.as_str(), info.reason.as_str()), (ERROR_DOMAIN, "INVALID_FIELD"));
    let violations = &details.bad_request().expect("a BadRequest").field_violations;
    assert_eq!(violations.iter().map(|v| v.field.as_str()).collect::<Vec<_>>(), [field]);
}

async fn enqueue(grpc: &str, jobs: Vec<NewJob>) -> Vec<EnqueuedJob> {
    let request = EnqueueJobsRequest { jobs, ..Default::default() };
    with_timeout("an answer", jobs_client(grpc).await.enqueue_jobs(request)).await.expect("enqueue").into_inner().jobs
}

async fn get(grpc: &str, id: i64) -> Job {
    let answer = with_timeout("an answer", jobs_client(grpc).await.get_job(GetJobRequest { id })).await;
    answer.expect("the job").into_inner().job.expect("a job")
}

/// Runs a job from enqueue to ack, to check that the broker still works.
async fn assert_serves(grpc: &str) {
    let task_type = format!("fine/{}", rand::random::<u64>());
    let mut worker = Worker::connect(grpc, &task_type, 1).await;
    let id = enqueue(grpc, vec![new_job(&task_type, "fine")]).await[0].id;
    let job = worker.next().await;
    assert_eq!((job.id, &job.payload[..]), (id, &b"fine"[..]));
    worker.ack(&job).await;
}

/// Asserts that the database has no jobs, task types or request keys.
async fn assert_nothing_stored(database: &TestDatabase) {
    let sql = "SELECT (SELECT count(*) FROM howdah.job) + (SELECT count(*) FROM howdah.task_type)
                    + (SELECT count(*) FROM howdah.request) + (SELECT count(*) FROM howdah.job_key)";
    assert_eq!(database.count(sql).await, 0);
}

/// Returns a hash of all stored data about jobs, to detect changes.
async fn fingerprint(database: &TestDatabase) -> i64 {
    let sql = "SELECT hashtextextended(
                   (SELECT coalesce(string_agg(j::text, ';' ORDER BY id), '') FROM howdah.job j) ||
                   (SELECT coalesce(string_agg(l::text, ';' ORDER BY id), '') FROM howdah.leased l), 0)";
    database.count(sql).await
}

/// Locks a table. Statements that use the table wait until `COMMIT` or the end of the returned connection.
async fn hold(database: &TestDatabase, table: &str) -> tokio_postgres::Client {
    let client = database.connect().await;
    client.batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).await.expect("lock");
    client
}
