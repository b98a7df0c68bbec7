//! Tests that enqueue requests are atomic, idempotent, and independent of concurrent requests.

use std::collections::HashSet;

use howdah_proto::v1::{JobState, ListJobsRequest, NewJob, StreamEnqueueRequest, TaskTypeSettings};
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::*;

#[tokio::test]
async fn a_repeated_request_returns_the_same_ids_and_another_body_is_refused() {
    let (a, b) = TestBroker::pair().await;
    let jobs = || [new_job("k", "1"), new_job("k", "2")];
    let first = a.enqueue_all(jobs()).request_key("once").outcomes().await;
    let again = b.enqueue_all(jobs()).request_key("once").outcomes().await;
    assert!(first.iter().all(|j| j.is_new) && again.iter().all(|j| !j.is_new));
    assert_eq!(first.iter().map(|j| j.id).collect::<Vec<_>>(), again.iter().map(|j| j.id).collect::<Vec<_>>());
    let other = a.enqueue(new_job("k", "3")).request_key("once").refused().await;
    assert_eq!(other.code, Code::AlreadyExists);
    assert_eq!(a.count("SELECT count(*) FROM howdah.ready").await, 2);
}

#[tokio::test]
async fn the_same_request_made_by_many_at_once_is_stored_once() {
    let (a, b) = TestBroker::pair().await;
    let mut calls = JoinSet::new();
    for n in 0..40 {
        let broker = if n % 2 == 0 { &a } else { &b };
        calls.spawn(broker.enqueue(new_job("k", "x")).request_key("same").into_future());
    }
    let ids: HashSet<i64> = calls.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(a.count("SELECT count(*) FROM howdah.ready").await, 1);
}

#[tokio::test]
async fn a_key_is_held_by_one_live_job_and_free_again_when_that_finishes() {
    let broker = TestBroker::start().await;
    let keyed = || new_job("k", "").key("invoice-7");
    let both = broker.enqueue_all([keyed(), keyed()]).outcomes().await;
    assert_eq!((both[0].is_new, both[1].is_new, both[0].id == both[1].id), (true, false, true));
    // The other task type has a separate key space, so the key is free there.
    assert!(broker.enqueue("other").key("invoice-7").outcome().await.is_new);
    let mut worker = broker.worker("k").window(1).await;
    let job = worker.next().await;
    assert!(!broker.enqueue(keyed()).outcome().await.is_new);
    worker.ack(&job).await;
    let next = broker.enqueue(keyed()).outcome().await;
    assert!(next.is_new && next.id != both[0].id);
}

#[tokio::test]
async fn a_bad_job_among_concurrent_requests_fails_alone() {
    let broker = TestBroker::start().await;
    let mut calls = JoinSet::new();
    for n in 0..60 {
        let second = if n % 3 == 0 { "no spaces" } else { "b" };
        let request = broker.enqueue_all([new_job("b", "good"), new_job(second, "good")]);
        calls.spawn(async move { (n, request.answer().await) });
    }
    for (n, answer) in calls.join_all().await {
        assert_eq!(answer.is_err(), n % 3 == 0, "{n}: {answer:?}");
        if let Err(status) = answer {
            Refusal::from(status).names("jobs[1].task_type");
        }
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 80);
}

#[tokio::test]
async fn a_job_that_postgres_itself_refuses_fails_alone() {
    let database = database().await;
    // Adds a constraint that refuses a job, because the tables accept all jobs that pass the broker's validation.
    database.sql("ALTER TABLE howdah.ready ADD CHECK (payload <> 'poison'::bytea)").await;
    let broker = TestBroker::on(&database).await;
    let mut calls = JoinSet::new();
    for n in 0..60 {
        let request = broker.enqueue("b").payload(if n == 30 { "poison" } else { "food" });
        calls.spawn(async move { (n, request.answer().await) });
    }
    for (n, answer) in calls.join_all().await {
        assert_eq!(answer.is_err(), n == 30, "{n}: {answer:?}");
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 59);
}

#[tokio::test]
async fn a_pipeline_answers_in_order_and_goes_on_after_an_error() {
    let broker = TestBroker::start().await;
    let requests = (0..200_u64).map(|sequence| {
        let task_type = if sequence == 100 { "" } else { "s" };
        StreamEnqueueRequest { sequence, jobs: vec![new_job(task_type, "")], ..Default::default() }
    });
    let mut answers = broker.jobs().stream_enqueue(tokio_stream::iter(requests)).await.expect("stream").into_inner();
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
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready").await, 199);
}

#[tokio::test]
async fn jobs_of_one_pipeline_keep_their_order() {
    let broker = TestBroker::start().await;
    let requests = (0..2_000_u64).map(|sequence| {
        let jobs = (0..10).map(|n| new_job("o", format!("{}", sequence * 10 + n))).collect();
        StreamEnqueueRequest { sequence, jobs, ..Default::default() }
    });
    let mut answers = broker.jobs().stream_enqueue(tokio_stream::iter(requests)).await.expect("stream").into_inner();
    while let Some(answer) = answers.message().await.expect("answer") {
        assert_eq!(answer.error, None);
    }
    let sql = "SELECT convert_from(payload, 'UTF8')::bigint FROM howdah.ready ORDER BY rank, id";
    let rows = broker.database.connect().await.query(sql, &[]).await.expect(sql);
    let order: Vec<i64> = rows.iter().map(|r| r.get(0)).collect();
    assert!(order.is_sorted(), "out of order at {:?}", order.iter().zip(&order[1..]).find(|(a, b)| a > b));
    assert_eq!(order.len(), 20_000);
}

#[tokio::test]
async fn a_list_shows_every_job_of_a_type_once_page_by_page() {
    let broker = TestBroker::start().await;
    let mut all: Vec<NewJob> = vec![new_job("l", "now"); 25];
    all.extend([new_job("l", "later").delay(MINUTE), new_job("other", "")]);
    let mut ids = broker.enqueue_all(all).await;
    ids.pop();
    let mut worker = broker.worker("l").window(3).await;
    let done = worker.next().await;
    worker.window("l", 0).await;
    worker.ack(&done).await;
    let mut seen = Vec::new();
    let mut query =
        ListJobsRequest { task_type: "l".into(), page_size: 7, include_payload: true, ..Default::default() };
    loop {
        let page = broker.jobs().list_jobs(query.clone()).await.expect("list").into_inner();
        assert!(page.jobs.len() <= 7);
        seen.extend(page.jobs.iter().map(|j| (j.id, j.state())));
        query.page_token = page.next_page_token;
        if query.page_token.is_empty() {
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
    let (a, b) = TestBroker::pair().await;
    a.set("set", TaskTypeSettings { max_attempts: 1, ..Default::default() }).await;
    a.settings_reach(&b).await;
    for broker in [&a, &b] {
        broker.enqueue("set").await;
    }
    assert_eq!(a.count("SELECT count(*) FROM howdah.ready WHERE max_attempts = 1").await, 2);
}
