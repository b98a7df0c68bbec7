//! Jobs that ask for more than a place in the order fail like any other.

use howdah_proto::v1::{
    DiscardJobsRequest, JobState, NewJob, RetryJobsRequest, SettleStatus, TaskTypeSettings, new_job as start_of,
    retry_jobs_request::Start,
};

use super::{enqueue, fail, get, of_ids, of_type, retry, set};
use crate::support::{TestBroker, Worker, database, jobs_client, new_job, until};

fn limited(key: &str) -> NewJob {
    NewJob { limit_key: "ann".into(), ..new_job("mail", key.to_owned()) }
}

#[tokio::test]
async fn in_its_fallback_no_stages_follow_and_who_waits_for_the_job_still_does() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set(&a, "mail", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let parent = NewJob {
        key: "k".into(),
        local_name: "parent".into(),
        next_stages: vec!["second".into()],
        fallback: "mail.failed".into(),
        ..limited("first")
    };
    let child = NewJob { after_local: vec!["parent".into()], ..new_job("child", "") };
    let ids = enqueue(&a, vec![parent.clone(), child, limited("next")]).await;
    let mut worker = Worker::connect(&a.grpc, "mail", 10).await;
    let mut fallback = Worker::connect(&b.grpc, "mail.failed", 10).await;
    let mut children = Worker::connect(&b.grpc, "child", 10).await;
    let job = worker.job().await;
    assert_eq!((job.id, worker.buffered()), (ids[0], 0), "one of the limit's key");
    fail(&mut worker, &job, "no", true).await;
    assert_eq!(worker.job().await.id, ids[2], "its place among those of the key is free");
    let job = fallback.job().await;
    assert_eq!((job.id, &job.payload[..]), (ids[0], &b"first"[..]));
    assert_eq!(get(&a, ids[1]).await.state(), JobState::Waiting);
    // Its key is free, as if it were dead.
    let again = enqueue(&a, vec![NewJob { local_name: String::new(), ..parent }]).await[0];
    assert_ne!(again, ids[0]);
    assert_eq!(fallback.ack(&job).await.status(), SettleStatus::Ok);
    assert_eq!(get(&a, ids[0]).await.state(), JobState::Succeeded);
    assert_eq!(children.job().await.id, ids[1]);
}

#[tokio::test]
async fn a_retried_job_waits_for_the_limit_of_its_key_like_any_other() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    set(&broker, "mail", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let mut worker = Worker::connect(&broker.grpc, "mail", 10).await;
    let ids = enqueue(&broker, vec![limited("1"), limited("2")]).await;
    let job = worker.job().await;
    fail(&mut worker, &job, "no host 1", true).await;
    let second = worker.job().await;
    assert_eq!(second.id, ids[1]);
    let filter = howdah_proto::v1::JobFilter { error_group: "no host #".into(), ..of_type("mail") };
    let answer = retry(&broker, RetryJobsRequest { filter: Some(filter), ..Default::default() }).await;
    assert_eq!(answer.retried_ids, ids[..1]);
    let waits = format!("SELECT EXISTS (SELECT FROM howdah.waiting WHERE id = {})", ids[0]);
    until(&database, "its turn", &waits).await;
    worker.ack(&second).await;
    let job = worker.job().await;
    assert_eq!((job.id, job.attempt), (ids[0], 1));
    // And at a time to come, with another payload.
    fail(&mut worker, &job, "no", true).await;
    let at = prost_types::Timestamp { seconds: 2_000_000_000, nanos: 0 };
    let start = Some(Start::RunAt(at));
    let request =
        RetryJobsRequest { filter: of_ids(&ids[..1]), start, payload: Some("new".into()), ..Default::default() };
    assert_eq!(retry(&broker, request).await.retried_ids, ids[..1]);
    let job = get(&broker, ids[0]).await;
    assert_eq!((job.state(), job.run_time, &job.payload[..]), (JobState::Scheduled, Some(at), &b"new"[..]));
    assert_eq!(
        retry(&broker, RetryJobsRequest { filter: of_ids(&ids[..1]), ..Default::default() }).await.retried_ids,
        ids[..1]
    );
    assert_eq!(&worker.job().await.payload[..], b"new");
}

#[tokio::test]
async fn a_special_dead_job_takes_its_key_again_unless_another_job_has_it() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "mail", 1).await;
    let keyed = || NewJob { key: "k".into(), ..limited("") };
    let first = enqueue(&broker, vec![keyed()]).await[0];
    let job = worker.job().await;
    fail(&mut worker, &job, "no", true).await;
    let second = enqueue(&broker, vec![keyed()]).await[0];
    let request = || RetryJobsRequest { filter: of_ids(&[first]), ..Default::default() };
    let answer = retry(&broker, request()).await;
    assert_eq!((answer.retried_ids.len(), answer.key_held_ids), (0, vec![first]));
    let job = worker.job().await;
    assert_eq!(job.id, second);
    worker.ack(&job).await;
    assert_eq!(retry(&broker, request()).await.retried_ids, [first]);
    assert_eq!(enqueue(&broker, vec![keyed()]).await, [first]);
}

#[tokio::test]
async fn a_dead_job_takes_its_key_again_when_the_time_is_over_for_which_another_held_it() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "mail", 1).await;
    let hold = Some(std::time::Duration::from_secs(3600).try_into().unwrap());
    let keyed = |key_hold| NewJob { key: "k".into(), key_hold, ..new_job("mail", "") };
    let mut dead = Vec::new();
    for key_hold in [None, hold] {
        dead.push(enqueue(&broker, vec![keyed(key_hold)]).await[0]);
        let job = worker.job().await;
        fail(&mut worker, &job, "no", true).await;
    }
    let request = |id: i64| RetryJobsRequest { filter: of_ids(&[id]), ..Default::default() };
    assert_eq!(retry(&broker, request(dead[0])).await.key_held_ids, [dead[0]]);
    // The hold is over, and nobody has cleaned up.
    until(&database, "the end of the hold", "UPDATE howdah.job_key SET held_until = now() RETURNING true").await;
    assert_eq!(retry(&broker, request(dead[0])).await.retried_ids, [dead[0]]);
    assert_eq!(retry(&broker, request(dead[1])).await.key_held_ids, [dead[1]]);
    let job = worker.job().await;
    assert_eq!(job.id, dead[0]);
    worker.ack(&job).await;
    // Of two with one key, one takes it.
    assert_eq!(retry(&broker, request(dead[1])).await.retried_ids, [dead[1]]);
    assert_eq!(database.count("SELECT count(*) FROM howdah.job_key WHERE held_until IS NULL").await, 1);
}

#[tokio::test]
async fn a_discarded_job_ends_the_wait_of_those_that_were_to_run_after_it() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let parent = enqueue(&broker, vec![new_job("mail", "")]).await[0];
    let child = NewJob {
        after: vec![parent],
        on_dependency_failure: howdah_proto::v1::DependencyFailure::Wait as i32,
        ..new_job("child", "")
    };
    let ids = [parent, enqueue(&broker, vec![child]).await[0]];
    let mut worker = Worker::connect(&broker.grpc, "mail", 1).await;
    let job = worker.job().await;
    fail(&mut worker, &job, "no", true).await;
    assert_eq!(get(&broker, ids[1]).await.state(), JobState::Waiting);
    let request = DiscardJobsRequest { filter: of_ids(&ids[..1]), ..Default::default() };
    let mut jobs = jobs_client(&broker.grpc).await;
    assert_eq!(jobs.discard_jobs(request).await.unwrap().into_inner().discarded_ids, ids[..1]);
    let cancelled = format!("SELECT count(*) = 1 FROM howdah.history WHERE id = {} AND outcome = 'cancelled'", ids[1]);
    until(&database, "the end of the child", &cancelled).await;
}

#[tokio::test]
async fn a_delayed_job_that_asks_for_more_runs_now_when_it_is_retried() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let hour = start_of::Start::Delay(prost_types::Duration { seconds: 3_600, nanos: 0 });
    let later = |job: NewJob| NewJob { start: Some(hour), ..job };
    let jobs = [limited("limited"), NewJob { fair_key: "ann".into(), ..new_job("mail", "fair") }].map(later);
    let ids = enqueue(&broker, jobs.to_vec()).await;
    let request = RetryJobsRequest { filter: of_ids(&ids), ..Default::default() };
    assert_eq!(retry(&broker, request).await.retried_ids, ids);
    let mut worker = Worker::connect(&broker.grpc, "mail", 10).await;
    let mut got = [worker.job().await.id, worker.job().await.id];
    got.sort_unstable();
    assert_eq!(got[..], ids[..]);
}
