//! Tests invalid task type names in every call.

use howdah_proto::v1::{
    EnqueueJobsRequest, ListJobsRequest, ListTaskTypesRequest, PullJobsRequest, StreamEnqueueRequest, Subscribe,
    TaskTypeSettings, UpdateTaskTypeRequest, Window, work_request,
};
use tonic::Code;

use super::{assert_names, assert_nothing_stored, assert_serves, enqueue, get, refused};
use crate::support::{
    TestBroker, Worker, database, jobs_client, new_job, task_types_client, with_timeout, workers_client,
};

fn bad_names() -> Vec<String> {
    let bad = [
        "",
        "a b",
        "a\nb",
        "a\r",
        "\t",
        "a\0",
        "\u{1b}[31mred",
        "a'; DROP TABLE howdah.ready; --",
        "a\"b",
        "100%",
        "a\\b",
        "é",
        "\u{feff}a",
        "a\u{202e}b",
        "<script>",
        "🦀",
    ];
    let long = ["x".repeat(201), "\u{1b}".repeat(201), "x".repeat(1 << 20)];
    bad.into_iter().map(str::to_owned).chain(long).collect()
}

#[tokio::test]
async fn a_bad_task_type_is_refused_by_every_call_that_names_its_field_and_index_and_nothing_is_stored() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let mut types = task_types_client(&broker.grpc).await;
    let mut workers = workers_client(&broker.grpc).await;
    for name in bad_names() {
        let both = || vec![new_job("good", ""), new_job(&name, "")];
        let request = EnqueueJobsRequest { jobs: both(), request_key: "k".into() };
        assert_names(&refused(jobs.enqueue_jobs(request)).await, "jobs[1].task_type");

        let task_types = vec!["good".into(), "good".into(), name.clone()];
        let request = PullJobsRequest { task_types, ..Default::default() };
        assert_names(&refused(workers.pull_jobs(request)).await, "task_types[2]");

        let settings = Some(TaskTypeSettings::default());
        let request = UpdateTaskTypeRequest { task_type: name.clone(), settings, update_mask: None };
        assert_names(&refused(types.update_task_type(request)).await, "task_type");

        if !name.is_empty() {
            // In `ListTaskTypes` and `ListJobs`, an empty name means all types.
            let request = ListJobsRequest { task_type: name.clone(), ..Default::default() };
            assert_names(&refused(jobs.list_jobs(request)).await, "task_type");
            let request = ListTaskTypesRequest { task_type: name.clone(), ..Default::default() };
            assert_names(&refused(types.list_task_types(request)).await, "task_type");
        }
    }
    assert_nothing_stored(&database).await;
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn a_bad_task_type_is_refused_by_every_message_of_a_workers_stream() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let window = |name: &str| Window { task_type: name.into(), jobs: 1, bytes: 0 };
    for name in bad_names() {
        let windows = vec![window("good"), window(&name)];
        let subscribe = Subscribe { windows, ..Default::default() };
        assert_names(&refused(Worker::try_subscribe(&broker.grpc, subscribe)).await, "windows[1].task_type");
        if !name.is_empty() {
            // In `Subscribe`, an empty name means that `windows` has the types.
            let subscribe = Subscribe { task_type: name.clone(), ..Default::default() };
            assert_names(&refused(Worker::try_subscribe(&broker.grpc, subscribe)).await, "task_type");
        }
        let mut worker = Worker::subscribe(&broker.grpc, Subscribe::default()).await;
        worker.send(work_request::Message::Window(window(&name))).await;
        assert_names(&refused(worker.message()).await, "task_type");
    }
    assert_nothing_stored(&database).await;
    assert_serves(&broker.grpc).await;
}

#[tokio::test]
async fn a_bad_task_type_in_a_pipeline_fails_its_request_alone() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let mut requests = Vec::new();
    for (sequence, name) in (0..).zip(bad_names()) {
        let bad = vec![new_job("good", ""), new_job("good", ""), new_job(&name, "")];
        requests.push(StreamEnqueueRequest { sequence: 2 * sequence, jobs: bad, ..Default::default() });
        let good = vec![new_job("good", "")];
        requests.push(StreamEnqueueRequest { sequence: 2 * sequence + 1, jobs: good, ..Default::default() });
    }
    let count = requests.len();
    let mut client = jobs_client(&broker.grpc).await;
    let answers =
        with_timeout("a stream", client.stream_enqueue(tokio_stream::iter(requests))).await.expect("a stream");
    let mut answers = answers.into_inner();
    for sequence in 0..count as u64 {
        let answer = with_timeout("an answer", answers.message()).await.expect("an open stream").expect("an answer");
        assert_eq!(answer.sequence, sequence);
        let error = answer.error.as_ref().map(|e| (Code::from(e.code), e.field.as_str(), e.reason.as_str()));
        let bad = (sequence % 2 == 0).then_some((Code::InvalidArgument, "jobs[2].task_type", "INVALID_FIELD"));
        assert_eq!(error, bad, "{answer:?}");
        assert!(answer.error.is_none_or(|e| e.message.starts_with("jobs[2].task_type ") && e.message.len() < 3_000));
    }
    assert!(with_timeout("the end", answers.message()).await.expect("a good end").is_none());
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, count as i64 / 2);
}

#[tokio::test]
async fn dots_slashes_and_words_of_sql_are_names_like_any_other() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let longest = "x".repeat(200);
    for name in ["../../etc/passwd", "..", "/", "::", "--", "NULL", "null", "select", "0", &longest] {
        let id = enqueue(&broker.grpc, vec![new_job(name, name)]).await[0].id;
        let mut worker = Worker::connect(&broker.grpc, name, 1).await;
        let job = worker.next().await;
        assert_eq!((job.id, job.task_type.as_str(), &job.payload[..]), (id, name, name.as_bytes()));
        worker.ack(&job).await;
        assert_eq!(get(&broker.grpc, id).await.task_type, name);
    }
    let types = task_types_client(&broker.grpc).await.list_task_types(ListTaskTypesRequest::default()).await.unwrap();
    assert_eq!(types.into_inner().task_types.len(), 10);
}
