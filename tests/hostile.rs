//! Whatever is sent: the answer is an error that helps, nothing is stored, nobody else notices, and
//! the broker stays as large as it was.

mod answers; // what must fit a message, however large the jobs
mod blocked; // what piles up while Postgres does not answer
mod bombs; // small on the wire, large in memory
mod budgets; // much memory for few bytes
mod database; // what other logins do, and how a database may be set
mod fields; // every field out of its bounds
mod floods; // from clients who do not wait and do not read
pub mod http; // the port for people and probes
mod http_floods; // the same beside floods, under other names
mod logs; // nobody forges a line of the log
mod many_types; // more task types than anybody needs
mod pages; // page tokens of another list
mod peers; // those that speak no gRPC, or too much of it
pub mod raw; // clients that no generated code would let us be
mod received; // more large messages than there is room for
pub mod secrets; // tokens, and who must not have them
mod subscriptions; // every field of the stream's messages
mod task_types; // names that are none
mod texts; // quotes, NULs, a megabyte of error
mod tokens; // leases that are not the sender's
mod tools; // health and reflection
mod wake; // junk where brokers talk
mod wire; // bytes that are no messages

use std::future::Future;

use howdah_proto::{
    ERROR_DOMAIN,
    v1::{EnqueueJobsRequest, EnqueuedJob, GetJobRequest, Job, NewJob},
};
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt as _;

use crate::support::{TestDatabase, Worker, jobs_client, new_job, soon};

/// A connection of its own.
async fn channel(grpc: &str) -> Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(grpc.to_owned()).expect("address");
    soon("a connection", endpoint.connect()).await.expect("connect")
}

/// The error of a call that must fail.
async fn refused<T>(call: impl Future<Output = Result<T, Status>>) -> Status {
    soon("an answer", call).await.err().expect("it was accepted")
}

/// `INVALID_ARGUMENT` that names the field, for people and for programs, and fits the headers of a call.
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
    soon("an answer", jobs_client(grpc).await.enqueue_jobs(request)).await.expect("enqueue").into_inner().jobs
}

async fn get(grpc: &str, id: i64) -> Job {
    let answer = soon("an answer", jobs_client(grpc).await.get_job(GetJobRequest { id })).await;
    answer.expect("the job").into_inner().job.expect("a job")
}

/// A job goes all the way: the broker is well.
async fn assert_serves(grpc: &str) {
    let task_type = format!("fine/{}", rand::random::<u64>());
    let mut worker = Worker::connect(grpc, &task_type, 1).await;
    let id = enqueue(grpc, vec![new_job(&task_type, "fine")]).await[0].id;
    let job = worker.next().await;
    assert_eq!((job.id, &job.payload[..]), (id, &b"fine"[..]));
    worker.ack(&job).await;
}

/// No job, no task type, no request key.
async fn assert_nothing_stored(database: &TestDatabase) {
    let sql = "SELECT (SELECT count(*) FROM howdah.job) + (SELECT count(*) FROM howdah.task_type)
                    + (SELECT count(*) FROM howdah.request) + (SELECT count(*) FROM howdah.job_key)";
    assert_eq!(database.count(sql).await, 0);
}

/// Everything that is stored of jobs, in one number.
async fn fingerprint(database: &TestDatabase) -> i64 {
    let sql = "SELECT hashtextextended(
                   (SELECT coalesce(string_agg(j::text, ';' ORDER BY id), '') FROM howdah.job j) ||
                   (SELECT coalesce(string_agg(l::text, ';' ORDER BY id), '') FROM howdah.leased l), 0)";
    database.count(sql).await
}

/// Holds a table: whatever would touch it waits until `COMMIT` or the end of the connection.
async fn hold(database: &TestDatabase, table: &str) -> tokio_postgres::Client {
    let client = database.connect().await;
    client.batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).await.expect("lock");
    client
}
