//! Tests every field of calls and pipelines with values beyond its bounds: the error names the field with its index, and
//! nothing is stored.

use howdah_proto::v1::{
    CancelJobsRequest, EnqueueJobsRequest, ExtendJobsRequest, Extension, GetJobRequest, JobState, ListJobsRequest,
    ListTaskTypesRequest, NewJob, Outcome, PullJobsRequest, RetryPolicy, SettleJobsRequest, StreamEnqueueRequest,
    TaskTypeSettings, UpdateTaskTypeRequest, new_job::Start,
};
use prost_types::{Duration, Timestamp};
use tonic::Code;

use super::{assert_names, assert_nothing_stored, assert_serves, enqueue, refused};
use crate::support::{TestBroker, database, jobs_client, new_job, task_types_client, with_timeout, workers_client};

const DAY: i64 = 24 * 3600;
/// Last second of the year 9999; later times are invalid in a protobuf `Timestamp`.
const YEAR_9999: i64 = 253_402_300_799;

fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

fn job() -> NewJob {
    new_job("good", "")
}

/// Durations that are invalid whatever the bounds are.
fn nonsense() -> [Duration; 6] {
    let d = |seconds, nanos| Duration { seconds, nanos };
    [d(-1, 0), d(0, -1), d(i64::MIN, i32::MIN), d(i64::MAX, 999_999_999), d(1, 1_000_000_000), d(-1, 1)]
}

fn bad_retry_policies() -> Vec<(&'static str, RetryPolicy)> {
    let mut bad = Vec::new();
    for delay in nonsense().into_iter().chain([seconds(30 * DAY + 1)]) {
        bad.push(("retry_policy.initial_delay", RetryPolicy { initial_delay: Some(delay), ..Default::default() }));
        bad.push(("retry_policy.max_delay", RetryPolicy { max_delay: Some(delay), ..Default::default() }));
    }
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.999, 100.1, f64::MAX] {
        bad.push(("retry_policy.multiplier", RetryPolicy { multiplier: Some(number), ..Default::default() }));
    }
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1.1] {
        bad.push(("retry_policy.jitter", RetryPolicy { jitter: Some(number), ..Default::default() }));
    }
    bad
}

/// Returns pairs of a field and a job with an invalid value in that field.
fn bad_jobs() -> Vec<(&'static str, NewJob)> {
    let headers = |headers: Vec<(String, String)>| NewJob { headers: headers.into_iter().collect(), ..job() };
    let key = |key: &str| NewJob { key: key.into(), ..job() };
    let trace = |traceparent: String, tracestate: String| NewJob { traceparent, tracestate, ..job() };
    let mut bad = vec![
        ("payload", new_job("good", vec![0; (1 << 20) + 1])),
        ("headers", headers((0..65).map(|n| (n.to_string(), String::new())).collect())),
        ("headers", headers(vec![("n".into(), "v".repeat(8 << 10))])),
        ("headers", headers(vec![("n\0".into(), "v".into())])),
        ("headers", headers(vec![("n".into(), "\0".into())])),
        ("key", key(&"k".repeat(201))),
        ("key", key("a\0")),
        ("key", key("a\n")),
        ("traceparent", trace("t".repeat(201), String::new())),
        ("traceparent", trace("\0".into(), String::new())),
        ("tracestate", trace(String::new(), "t".repeat(513))),
        ("tracestate", trace(String::new(), "\u{1b}".into())),
    ];
    for priority in [1_001, -1_001, i32::MIN, i32::MAX] {
        bad.push(("priority", NewJob { priority, ..job() }));
    }
    for max_attempts in [1_001, i32::MAX as u32, u32::MAX] {
        bad.push(("max_attempts", NewJob { max_attempts, ..job() }));
    }
    for (at, nanos) in [(YEAR_9999, 0), (YEAR_9999 + 1, 0), (i64::MAX, 0), (i64::MIN, 0), (0, -1), (0, i32::MAX)] {
        let start = Some(Start::RunAt(Timestamp { seconds: at, nanos }));
        bad.push(("run_at", NewJob { start, ..job() }));
    }
    for delay in nonsense().into_iter().chain([seconds(3_650 * DAY + 1)]) {
        bad.push(("delay", NewJob { start: Some(Start::Delay(delay)), ..job() }));
    }
    for timeout in nonsense().into_iter().chain([seconds(0), Duration { seconds: 0, nanos: 999 }, seconds(31 * DAY)]) {
        bad.push(("timeout", NewJob { timeout: Some(timeout), ..job() }));
    }
    bad.extend(bad_retry_policies().into_iter().map(|(f, p)| (f, NewJob { retry_policy: Some(p), ..job() })));
    bad
}

#[tokio::test]
async fn a_job_with_any_field_out_of_its_bounds_is_refused_with_its_whole_request() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    for (field, bad) in bad_jobs() {
        let request = EnqueueJobsRequest { jobs: vec![job(), job(), bad, job()], request_key: "k".into() };
        assert_names(&refused(jobs.enqueue_jobs(request)).await, &format!("jobs[2].{field}"));
    }
    assert_nothing_stored(&database).await;
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn a_pipeline_answers_each_bad_job_with_its_field_and_goes_on() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let bad = bad_jobs();
    let fields: Vec<_> = bad.iter().map(|(field, _)| format!("jobs[0].{field}")).collect();
    let requests = (0..).zip(bad).map(|(sequence, (_, bad))| StreamEnqueueRequest {
        sequence,
        jobs: vec![bad],
        request_key: "k".into(),
    });
    let last = StreamEnqueueRequest { sequence: u64::MAX, jobs: vec![job()], ..Default::default() };
    let mut client = jobs_client(&broker.grpc).await;
    let requests = tokio_stream::iter(requests.chain([last]).collect::<Vec<_>>());
    let mut answers = with_timeout("a stream", client.stream_enqueue(requests)).await.expect("a stream").into_inner();
    for (sequence, field) in fields.iter().enumerate() {
        let answer = with_timeout("an answer", answers.message()).await.expect("an open stream").expect("an answer");
        assert_eq!((answer.sequence, answer.error.map(|e| e.field).as_ref()), (sequence as u64, Some(field)));
    }
    let answer = with_timeout("an answer", answers.message()).await.expect("an open stream").expect("an answer");
    assert_eq!((answer.sequence, answer.jobs.len()), (u64::MAX, 1));
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 1);
}

#[tokio::test]
async fn a_batch_of_none_or_too_many_and_a_bad_request_key_are_refused() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let mut workers = workers_client(&broker.grpc).await;
    for count in [0, 10_001] {
        let request = EnqueueJobsRequest { jobs: vec![job(); count], ..Default::default() };
        assert_names(&refused(jobs.enqueue_jobs(request)).await, "jobs");
        let request = CancelJobsRequest { ids: vec![1; count], ..Default::default() };
        assert_names(&refused(jobs.cancel_jobs(request)).await, "ids");
        let request = SettleJobsRequest { outcomes: vec![Outcome::default(); count] };
        assert_names(&refused(workers.settle_jobs(request)).await, "outcomes");
        let request = ExtendJobsRequest { extensions: vec![Extension::default(); count] };
        assert_names(&refused(workers.extend_jobs(request)).await, "extensions");
    }
    for key in ["k".repeat(201), "a\0".into(), "a\nb".into(), "\u{9b}31m".into()] {
        let request = EnqueueJobsRequest { jobs: vec![job()], request_key: key };
        assert_names(&refused(jobs.enqueue_jobs(request)).await, "request_key");
    }
    assert_nothing_stored(&database).await;
}

#[tokio::test]
async fn ids_of_no_job_are_not_found_and_cancel_nothing() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let id = enqueue(&broker.grpc, vec![job()]).await[0].id;
    let nobodys = [0, -1, -id, id + 1, i64::MIN, i64::MAX];
    for id in nobodys {
        assert_eq!(refused(jobs.get_job(GetJobRequest { id })).await.code(), Code::NotFound);
    }
    let request = CancelJobsRequest { ids: nobodys.repeat(1_000), ..Default::default() };
    let cancelled = with_timeout("an answer", jobs.cancel_jobs(request)).await.expect("an answer").into_inner();
    assert_eq!(cancelled.cancelled_ids, Vec::<i64>::new());
    // A cancel that names the same job ten thousand times cancels it once.
    let cancelled =
        with_timeout("an answer", jobs.cancel_jobs(CancelJobsRequest { ids: vec![id; 10_000], ..Default::default() }))
            .await;
    assert_eq!(cancelled.expect("an answer").into_inner().cancelled_ids, [id]);
    assert_eq!(database.count("SELECT count(*) FROM howdah.history WHERE outcome = 'cancelled'").await, 1);
}

#[tokio::test]
async fn a_list_with_an_unknown_state_a_negative_page_size_or_a_forged_page_token_is_refused() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let mut types = task_types_client(&broker.grpc).await;
    enqueue(&broker.grpc, vec![job(); 3]).await;
    let list = || ListJobsRequest { task_type: "good".into(), ..Default::default() };
    for state in [-1, 10, 99, i32::MIN, i32::MAX] {
        assert_names(&refused(jobs.list_jobs(ListJobsRequest { state, ..list() })).await, "state");
    }
    for page_size in [-1, i32::MIN] {
        assert_names(&refused(jobs.list_jobs(ListJobsRequest { page_size, ..list() })).await, "page_size");
        let request = ListTaskTypesRequest { page_size, ..Default::default() };
        assert_names(&refused(types.list_task_types(request)).await, "page_size");
    }
    // A valid page token, and tampered copies of it.
    let first = jobs.list_jobs(ListJobsRequest { page_size: 1, ..list() }).await.expect("a page").into_inner();
    let good = first.next_page_token;
    let mut tokens: Vec<String> = ["'; --", "0", "zz", "../..", "\0", "é", "0101"].map(str::to_owned).to_vec();
    tokens.extend([
        good.to_uppercase() + "00",
        good[2..].to_owned(),
        format!("ff{}", &good[2..]),
        "00".repeat(1 << 16),
    ]);
    for token in tokens {
        let request = ListJobsRequest { page_token: token.clone(), ..list() };
        assert_names(&refused(jobs.list_jobs(request)).await, "page_token");
        let request = ListTaskTypesRequest { page_token: token, ..Default::default() };
        assert_names(&refused(types.list_task_types(request)).await, "page_token");
    }
    // A page token is invalid for another state, and for the list of task types.
    let other = ListJobsRequest { page_token: good.clone(), state: JobState::Dead as i32, ..list() };
    assert_names(&refused(jobs.list_jobs(other)).await, "page_token");
    let other = ListTaskTypesRequest { page_token: good.clone(), ..Default::default() };
    assert_names(&refused(types.list_task_types(other)).await, "page_token");
    // A huge page size is valid. A token whose position was changed is refused.
    let request = ListJobsRequest { page_size: i32::MAX, ..list() };
    assert_eq!(jobs.list_jobs(request).await.expect("a page").into_inner().jobs.len(), 3);
    let forged = ListJobsRequest { page_token: format!("{}{}", &good[..6], "f".repeat(good.len() - 6)), ..list() };
    assert_names(&refused(jobs.list_jobs(forged)).await, "page_token");
}

#[tokio::test]
async fn a_pull_out_of_its_bounds_takes_nothing() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut workers = workers_client(&broker.grpc).await;
    enqueue(&broker.grpc, vec![job()]).await;
    let pull = || PullJobsRequest { task_types: vec!["good".into()], ..Default::default() };
    let mut bad = vec![
        ("task_types", PullJobsRequest { task_types: vec![], ..pull() }),
        ("task_types", PullJobsRequest { task_types: vec!["good".into(); 1_001], ..pull() }),
    ];
    bad.extend([-1, 10_001, i32::MIN, i32::MAX].map(|max_jobs| ("max_jobs", PullJobsRequest { max_jobs, ..pull() })));
    for lease in nonsense().into_iter().chain([seconds(0), seconds(DAY), Duration { seconds: 0, nanos: 999_999_999 }]) {
        bad.push(("lease_duration", PullJobsRequest { lease_duration: Some(lease), ..pull() }));
    }
    for wait in nonsense().into_iter().chain([seconds(61)]) {
        bad.push(("wait", PullJobsRequest { wait: Some(wait), ..pull() }));
    }
    for (field, request) in bad {
        assert_names(&refused(workers.pull_jobs(request)).await, field);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready WHERE attempt = 0").await, 1);
}

#[tokio::test]
async fn a_task_types_settings_out_of_their_bounds_change_nothing() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut types = task_types_client(&broker.grpc).await;
    let update = |settings| UpdateTaskTypeRequest { task_type: "set".into(), settings, update_mask: None };
    assert_names(&refused(types.update_task_type(update(None))).await, "settings");
    for max_attempts in [1_001, i32::MAX as u32, u32::MAX] {
        let settings = TaskTypeSettings { max_attempts, ..Default::default() };
        assert_names(&refused(types.update_task_type(update(Some(settings)))).await, "settings.max_attempts");
    }
    for (field, policy) in bad_retry_policies() {
        let settings = TaskTypeSettings { max_attempts: 3, retry_policy: Some(policy), ..Default::default() };
        assert_names(&refused(types.update_task_type(update(Some(settings)))).await, &format!("settings.{field}"));
    }
    assert_nothing_stored(&database).await;
}
