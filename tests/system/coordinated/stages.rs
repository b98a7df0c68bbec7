//! Tests stages: one job goes through several task types.

use howdah_proto::v1::{JobState, LeasedJob, NewJob, SettleStatus, StagePayload};

use crate::support::*;

fn staged(payload: StagePayload) -> NewJob {
    new_job("fetch", "url").next_stages(&["parse", "index"]).stages_get(payload)
}

#[tokio::test]
async fn a_job_goes_on_with_the_result_of_the_stage_before() {
    let (a, b) = TestBroker::pair().await;
    let id = a.enqueue(staged(StagePayload::Result)).await;
    let mut fetch = a.worker("fetch").window(1).await;
    let mut parse = b.worker("parse").window(1).await;
    let mut index = a.worker("index").window(1).await;
    let job = fetch.next().await;
    fetch.ack(&job).result("page").await;
    let job = parse.next().await;
    assert_eq!((job.id, &job.payload[..], job.attempt), (id, &b"page"[..], 1));
    // A failed attempt of a stage is retried, and each stage counts its attempts from 1.
    parse.nack(&job, "once").at_once().await;
    let job = parse.next().await;
    assert_eq!(job.attempt, 2);
    parse.ack(&job).result("words").await;
    let job = index.next().await;
    assert_eq!((job.id, &job.payload[..], job.attempt), (id, &b"words"[..], 1));
    index.ack(&job).result("done").await;
    let job = b.job(id).await;
    assert_eq!((job.state(), &job.result[..], job.task_type.as_str()), (JobState::Succeeded, &b"done"[..], "index"));
    let stages: Vec<_> = job.completed_stages.iter().map(|s| (s.task_type.as_str(), s.attempt)).collect();
    assert_eq!(stages, [("fetch", 1), ("parse", 2)]);
}

#[tokio::test]
async fn a_stage_that_the_worker_adds_gets_the_result_too() {
    let broker = TestBroker::start().await;
    let large = vec![b'x'; 100 << 10];
    for payload in [b"url".to_vec(), large] {
        let id = broker.enqueue(new_job("fetch", payload)).await;
        let mut fetch = broker.worker("fetch").window(1).await;
        let job = fetch.next().await;
        fetch.ack(&job).result("page").next_stage("extra").await;
        let job = broker.worker("extra").window(1).await.next().await;
        assert_eq!((job.id, &job.payload[..]), (id, &b"page"[..]));
    }
}

#[tokio::test]
async fn a_job_may_keep_its_payload_and_a_worker_may_name_the_stage() {
    let broker = TestBroker::start().await;
    let large = "x".repeat(4_000);
    let id = broker.enqueue(staged(StagePayload::Unchanged)).payload(large.clone()).await;
    let mut fetch = broker.worker("fetch").window(1).await;
    let job = fetch.next().await;
    fetch.ack(&job).result("not for the next").next_stage("index").await;
    let mut index = broker.worker("index").window(1).await;
    let job = index.next().await;
    assert_eq!((job.id, job.payload), (id, large.into()));
    let job = broker.job(id).await;
    assert!(job.next_stages.is_empty(), "the skipped stage parse is still planned: {job:?}");
}

#[tokio::test]
async fn a_key_is_held_through_all_stages() {
    let broker = TestBroker::start().await;
    let keyed = || staged(StagePayload::Result).key("k");
    let id = broker.enqueue(keyed()).await;
    for stage in ["fetch", "parse", "index"] {
        assert_eq!(broker.enqueue(keyed()).await, id, "in {stage}");
        let mut worker = broker.worker(stage).window(1).await;
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    assert_eq!(broker.state(id).await, JobState::Succeeded);
    assert_ne!(broker.enqueue_all([keyed()]).await, [id]);
}

#[tokio::test]
async fn a_repeated_ack_of_a_stage_is_ok_and_a_stale_one_is_not() {
    let broker = TestBroker::start().await;
    broker.enqueue(staged(StagePayload::Result)).await;
    let mut worker = broker.worker("fetch").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).result("1").await;
    worker.ack(&job).result("2").await;
    let stale = LeasedJob { token: job.token + 1, ..job };
    assert_eq!(worker.ack(&stale).result("3").status().await, SettleStatus::LeaseLost);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready WHERE payload = '1'").await, 1);
}

#[tokio::test]
async fn an_empty_stage_name_is_refused_with_its_index() {
    let broker = TestBroker::start().await;
    broker.enqueue("fetch").next_stages(&["parse", ""]).refused().await.names("jobs[0].next_stages[1]");
}
