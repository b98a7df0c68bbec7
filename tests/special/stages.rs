//! Stages: one job goes through several task types.

use howdah_proto::v1::{Ack, JobState, LeasedJob, NewJob, Outcome, SettleStatus, StagePayload, outcome};
use tonic::Code;

use super::{enqueue, get, ids, until_state};
use crate::support::{TestBroker, Worker, database, nack, new_job};

fn staged(payload: StagePayload) -> NewJob {
    let next_stages = vec!["parse".into(), "index".into()];
    NewJob { next_stages, stage_payload: payload as i32, ..new_job("fetch", "url") }
}

fn ack(job: &LeasedJob, result: &'static str, next: &str) -> Outcome {
    let ack = Ack { result: result.into(), next_stage: next.into() };
    Outcome { id: job.id, token: job.token, outcome: Some(outcome::Outcome::Ack(ack)) }
}

async fn settle(worker: &mut Worker, outcome: Outcome) {
    worker.settle(vec![outcome]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
}

#[tokio::test]
async fn a_job_goes_on_with_the_result_of_the_stage_before() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let id = ids(&a, vec![staged(StagePayload::Result)]).await[0];
    let mut fetch = Worker::connect(&a.grpc, "fetch", 1).await;
    let mut parse = Worker::connect(&b.grpc, "parse", 1).await;
    let mut index = Worker::connect(&a.grpc, "index", 1).await;
    let job = fetch.job().await;
    settle(&mut fetch, ack(&job, "page", "")).await;
    let job = parse.job().await;
    assert_eq!((job.id, &job.payload[..], job.attempt), (id, &b"page"[..], 1));
    // A stage may fail like any job; the attempts are its own.
    parse.settle(vec![nack(&job, "once")]).await;
    parse.settled().await;
    let job = parse.job().await;
    assert_eq!(job.attempt, 2);
    settle(&mut parse, ack(&job, "words", "")).await;
    let job = index.job().await;
    assert_eq!((job.id, &job.payload[..], job.attempt), (id, &b"words"[..], 1));
    settle(&mut index, ack(&job, "done", "")).await;
    let job = get(&b, id).await;
    assert_eq!((job.state(), &job.result[..], job.task_type.as_str()), (JobState::Succeeded, &b"done"[..], "index"));
    let stages: Vec<_> = job.stages_done.iter().map(|s| (s.task_type.as_str(), s.attempt)).collect();
    assert_eq!(stages, [("fetch", 1), ("parse", 2)]);
}

#[tokio::test]
async fn a_job_may_keep_its_payload_and_a_worker_may_name_the_stage() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let large = "x".repeat(4_000);
    let job = NewJob { payload: large.clone().into(), ..staged(StagePayload::Unchanged) };
    let id = ids(&broker, vec![job]).await[0];
    let mut fetch = Worker::connect(&broker.grpc, "fetch", 1).await;
    let job = fetch.job().await;
    settle(&mut fetch, ack(&job, "not for the next", "index")).await;
    let mut index = Worker::connect(&broker.grpc, "index", 1).await;
    let job = index.job().await;
    assert_eq!((job.id, job.payload), (id, large.into()));
    let job = get(&broker, id).await;
    assert!(job.next_stages.is_empty(), "parse was passed over: {job:?}");
}

#[tokio::test]
async fn a_key_is_held_through_all_stages() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let keyed = || NewJob { key: "k".into(), ..staged(StagePayload::Result) };
    let id = ids(&broker, vec![keyed()]).await[0];
    for stage in ["fetch", "parse", "index"] {
        assert_eq!(ids(&broker, vec![keyed()]).await, [id], "in {stage}");
        let mut worker = Worker::connect(&broker.grpc, stage, 1).await;
        let job = worker.job().await;
        settle(&mut worker, ack(&job, "", "")).await;
    }
    until_state(&database, id, JobState::Succeeded).await;
    assert_ne!(ids(&broker, vec![keyed()]).await, [id]);
}

#[tokio::test]
async fn a_repeated_ack_of_a_stage_is_ok_and_a_stale_one_is_not() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    ids(&broker, vec![staged(StagePayload::Result)]).await;
    let mut worker = Worker::connect(&broker.grpc, "fetch", 1).await;
    let job = worker.job().await;
    settle(&mut worker, ack(&job, "1", "")).await;
    settle(&mut worker, ack(&job, "2", "")).await;
    let stale = LeasedJob { token: job.token + 1, ..job };
    worker.settle(vec![ack(&stale, "3", "")]).await;
    assert_eq!(worker.settled().await.status(), SettleStatus::LeaseLost);
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready WHERE payload = '1'").await, 1);
}

#[tokio::test]
async fn an_empty_stage_is_refused_by_its_place() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let job = NewJob { next_stages: vec!["parse".into(), String::new()], ..new_job("fetch", "") };
    let error = enqueue(&broker, vec![job]).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().starts_with("jobs[0].next_stages[1]"), "{error}");
}
