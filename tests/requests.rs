//! Enqueue requests: atomic, safe to repeat, none at the mercy of its neighbours.

use std::time::Duration;

use howdah_proto::v1::{
    EnqueueJobsRequest, JobState, ListJobsRequest, NewJob, StreamEnqueueRequest, TaskTypeSettings,
    UpdateTaskTypeRequest,
};
use tonic::Code;

use crate::{
    settings::until_read,
    support::{TestBroker, Worker, database, jobs_client, new_job, task_types_client},
};

fn request(jobs: Vec<NewJob>, request_key: &str) -> EnqueueJobsRequest {
    EnqueueJobsRequest { jobs, request_key: request_key.into() }
}

#[tokio::test]
async fn a_repeated_request_returns_the_same_ids_and_another_body_is_refused() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let jobs = || vec![new_job("k", "1"), new_job("k", "2")];
    let first = jobs_client(&a.grpc).await.enqueue_jobs(request(jobs(), "once")).await.unwrap().into_inner().jobs;
    let again = jobs_client(&b.grpc).await.enqueue_jobs(request(jobs(), "once")).await.unwrap().into_inner().jobs;
    assert!(first.iter().all(|j| j.is_new) && again.iter().all(|j| !j.is_new));
    assert_eq!(first.iter().map(|j| j.id).collect::<Vec<_>>(), again.iter().map(|j| j.id).collect::<Vec<_>>());
    let other = jobs_client(&a.grpc).await.enqueue_jobs(request(vec![new_job("k", "3")], "once")).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 2);
}

#[tokio::test]
async fn the_same_request_made_by_many_at_once_is_stored_once() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..40 {
        let mut client = jobs_client(if n % 2 == 0 { &a.grpc } else { &b.grpc }).await;
        calls.spawn(async move { client.enqueue_jobs(request(vec![new_job("k", "x")], "same")).await });
    }
    let mut ids = Vec::new();
    while let Some(answer) = calls.join_next().await {
        ids.push(answer.unwrap().expect("enqueue").into_inner().jobs[0].id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 1);
}

#[tokio::test]
async fn a_key_is_held_by_one_live_job_and_free_again_when_that_finishes() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let keyed = || NewJob { key: "invoice-7".into(), ..new_job("k", "") };
    let both = jobs.enqueue_jobs(request(vec![keyed(), keyed()], "")).await.unwrap().into_inner().jobs;
    assert_eq!((both[0].is_new, both[1].is_new, both[0].id == both[1].id), (true, false, true));
    // Another type's keys are its own.
    let other = NewJob { key: "invoice-7".into(), ..new_job("other", "") };
    assert!(jobs.enqueue_jobs(request(vec![other], "")).await.unwrap().into_inner().jobs[0].is_new);
    let mut worker = Worker::connect(&broker.grpc, "k", 1).await;
    let job = worker.job().await;
    assert!(!jobs.enqueue_jobs(request(vec![keyed()], "")).await.unwrap().into_inner().jobs[0].is_new);
    worker.ack(&job).await;
    let next = jobs.enqueue_jobs(request(vec![keyed()], "")).await.unwrap().into_inner().jobs[0];
    assert!(next.is_new && next.id != both[0].id);
}

#[tokio::test]
async fn a_bad_job_among_concurrent_requests_fails_alone() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..60 {
        let mut client = jobs_client(&broker.grpc).await;
        let mut jobs = vec![new_job("b", "good"), new_job("b", "good")];
        if n % 3 == 0 {
            jobs[1].task_type = "no spaces".into();
        }
        calls.spawn(async move { (n, client.enqueue_jobs(request(jobs, "")).await) });
    }
    while let Some(answer) = calls.join_next().await {
        let (n, answer) = answer.unwrap();
        assert_eq!(
            answer.as_ref().err().map(|e| e.code()),
            (n % 3 == 0).then_some(Code::InvalidArgument),
            "{answer:?}"
        );
        if let Err(status) = answer {
            assert!(status.message().contains("jobs[1].task_type"), "{status:?}");
        }
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 80);
}

#[tokio::test]
async fn a_job_that_postgres_itself_refuses_fails_alone() {
    let database = database().await;
    // Nothing that passes the checks is refused by our tables; so give one of them a rule of its own.
    let rule = "ALTER TABLE howdah.ready ADD CHECK (payload <> 'poison'::bytea)";
    database.connect().await.batch_execute(rule).await.unwrap();
    let broker = TestBroker::start(&database).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..60 {
        let mut client = jobs_client(&broker.grpc).await;
        let payload = if n == 30 { "poison" } else { "food" };
        calls.spawn(async move { (n, client.enqueue_jobs(request(vec![new_job("b", payload)], "")).await) });
    }
    while let Some(answer) = calls.join_next().await {
        let (n, answer) = answer.unwrap();
        assert_eq!(answer.is_err(), n == 30, "{n}: {answer:?}");
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 59);
}

#[tokio::test]
async fn a_pipeline_answers_in_order_and_goes_on_after_an_error() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let requests = (0..200_u64).map(|sequence| {
        let task_type = if sequence == 100 { "" } else { "s" };
        StreamEnqueueRequest { sequence, jobs: vec![new_job(task_type, "")], ..Default::default() }
    });
    let mut client = jobs_client(&broker.grpc).await;
    let mut answers = client.stream_enqueue(tokio_stream::iter(requests)).await.expect("stream").into_inner();
    let mut sequences = Vec::new();
    while let Some(answer) = answers.message().await.expect("answer") {
        sequences.push(answer.sequence);
        match answer.error {
            Some(error) => {
                assert_eq!((answer.sequence, error.code), (100, Code::InvalidArgument as i32));
                assert_eq!(error.field, "jobs[0].task_type");
            }
            None => assert!(answer.jobs[0].is_new),
        }
    }
    assert_eq!(sequences, (0..200).collect::<Vec<_>>());
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 199);
}

#[tokio::test]
async fn jobs_of_one_pipeline_keep_their_order() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let requests = (0..2_000_u64).map(|sequence| {
        let jobs = (0..10).map(|n| new_job("o", format!("{}", sequence * 10 + n))).collect();
        StreamEnqueueRequest { sequence, jobs, ..Default::default() }
    });
    let mut client = jobs_client(&broker.grpc).await;
    let mut answers = client.stream_enqueue(tokio_stream::iter(requests)).await.expect("stream").into_inner();
    while let Some(answer) = answers.message().await.expect("answer") {
        assert_eq!(answer.error, None);
    }
    let sql = "SELECT convert_from(payload, 'UTF8')::bigint FROM howdah.ready ORDER BY rank, id";
    let rows = database.connect().await.query(sql, &[]).await.expect(sql);
    let order: Vec<i64> = rows.iter().map(|r| r.get(0)).collect();
    assert!(order.is_sorted(), "out of order at {:?}", order.iter().zip(&order[1..]).find(|(a, b)| a > b));
    assert_eq!(order.len(), 20_000);
}

#[tokio::test]
async fn a_list_shows_every_job_of_a_type_once_page_by_page() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut jobs = jobs_client(&broker.grpc).await;
    let start = howdah_proto::v1::new_job::Start::Delay(Duration::from_secs(60).try_into().unwrap());
    let later = NewJob { start: Some(start), ..new_job("l", "later") };
    let mut all: Vec<NewJob> = (0..25).map(|_| new_job("l", "now")).collect();
    all.extend([later, new_job("other", "")]);
    let mut ids: Vec<i64> =
        jobs.enqueue_jobs(request(all, "")).await.unwrap().into_inner().jobs.iter().map(|j| j.id).collect();
    ids.pop();
    let mut worker = Worker::connect(&broker.grpc, "l", 3).await;
    let done = worker.job().await;
    worker
        .send(howdah_proto::v1::work_request::Message::Window(howdah_proto::v1::Window {
            task_type: "l".into(),
            jobs: 0,
            bytes: 0,
        }))
        .await;
    worker.ack(&done).await;
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let query = ListJobsRequest {
            task_type: "l".into(),
            page_size: 7,
            page_token: token,
            include_payload: true,
            ..Default::default()
        };
        let page = jobs.list_jobs(query).await.expect("list").into_inner();
        assert!(page.jobs.len() <= 7);
        seen.extend(page.jobs.iter().map(|j| (j.id, j.state())));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    let mut seen_ids: Vec<i64> = seen.iter().map(|(id, _)| *id).collect();
    seen_ids.sort_unstable();
    assert_eq!(seen_ids, ids);
    assert!(seen.contains(&(done.id, JobState::Succeeded)) && seen.contains(&(ids[25], JobState::Scheduled)));
}

#[tokio::test]
async fn a_types_settings_hold_for_its_jobs_on_every_broker_within_a_second() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let settings = TaskTypeSettings { max_attempts: 1, ..Default::default() };
    let update = UpdateTaskTypeRequest { task_type: "set".into(), settings: Some(settings) };
    task_types_client(&a.grpc).await.update_task_type(update).await.expect("update");
    until_read(&database, &a, &b).await;
    for broker in [&a, &b] {
        jobs_client(&broker.grpc).await.enqueue_jobs(request(vec![new_job("set", "")], "")).await.unwrap();
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready WHERE max_attempts = 1").await, 2);
}
