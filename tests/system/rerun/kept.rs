//! Tests that the new job has the options and the payload of the finished job, as far as history keeps them.

use howdah_proto::v1::{JobState, NewJob, RerunJobsRequest, RerunOutcome, StagePayload};

use super::{of, rerun_one, succeeded};
use crate::support::*;

#[tokio::test]
async fn a_new_job_has_the_options_of_the_finished_one() {
    let broker = TestBroker::start().await;
    let old = new_job("t", vec![b'x'; 5_000])
        .header("tenant", "a")
        .tags(&["red", "blue"])
        .priority(-7)
        .max_attempts(3)
        .key("k")
        .limit_key("l")
        .fair_key("f")
        .fallback("t.failed")
        .next_stages(&["s"])
        .delay(HOUR)
        .expire_after(2 * HOUR)
        .parent(77)
        .trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    let id = broker.enqueue(old.clone()).await;
    broker.cancel(&[id]).await;
    let new = rerun_one(&broker, of(&[id])).await;
    assert_eq!((new.state(), new.parent_id, new.expire_time, new.run_time), (JobState::Ready, id, None, None));
    assert_eq!((&new.payload, &new.headers, &new.tags), (&old.payload, &old.headers, &old.tags));
    assert_eq!((new.priority, new.max_attempts, &*new.key), (-7, 3, "k"));
    assert_eq!((&*new.limit_key, &*new.fair_key, new.next_stages.join(" ")), ("l", "f", "s".to_owned()));
    let kept = format!(
        "SELECT count(*) FROM howdah.ready JOIN howdah.task_type t ON t.id = (options ->> 'fallback')::integer
         WHERE ready.id = {} AND t.name = 't.failed' AND options -> 'traceparent' IS NULL",
        new.id
    );
    assert_eq!(broker.count(&kept).await, 1);
}

#[tokio::test]
async fn a_job_that_went_to_its_fallback_runs_again_with_its_first_type() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("mail", "p").fallback("mail.failed").max_attempts(1)).await;
    let jobs = broker.pull("mail").await;
    broker.settle(vec![nack(&jobs[0], "no such address")]).await;
    let jobs = broker.pull("mail.failed").await;
    broker.settle(vec![ack(&jobs[0])]).await;
    broker.until_state(id, JobState::Succeeded).await;
    let new = rerun_one(&broker, of(&[id])).await;
    assert_eq!((&*new.task_type, &*new.original_task_type, &new.payload[..]), ("mail", "", &b"p"[..]));
    // The new job has the same fallback.
    let mut worker = broker.worker("mail").await;
    let job = worker.next().await;
    worker.nack(&job, "still no such address").no_retry().await;
    assert_eq!(broker.job(new.id).await.task_type, "mail.failed");
}

fn staged(payload: StagePayload) -> NewJob {
    new_job("fetch", "url").next_stages(&["parse"]).stages_get(payload)
}

/// Enqueues a job, and lets all of its stages succeed.
async fn through_all_stages(broker: &TestBroker, job: NewJob) -> i64 {
    let id = broker.enqueue(job).await;
    for stage in ["fetch", "parse"] {
        let jobs = broker.pull(stage).await;
        broker.settle(vec![ack(&jobs[0]).result("page")]).await;
    }
    broker.until_state(id, JobState::Succeeded).await;
    id
}

#[tokio::test]
async fn a_job_with_stages_runs_again_through_all_of_them() {
    let broker = TestBroker::start().await;
    let id = through_all_stages(&broker, staged(StagePayload::Unchanged)).await;
    assert_eq!(broker.job(id).await.task_type, "parse");
    let new = rerun_one(&broker, of(&[id])).await;
    assert_eq!((&*new.task_type, new.next_stages.join(" ")), ("fetch", "parse".to_owned()));
    let again = through_stages_of(&broker, new.id).await;
    assert_eq!(again, ["url", "url"]);
}

/// Lets all stages of a stored job succeed. Returns the payload of each stage.
async fn through_stages_of(broker: &TestBroker, id: i64) -> Vec<String> {
    let mut payloads = Vec::new();
    for stage in ["fetch", "parse"] {
        let jobs = broker.pull(stage).await;
        assert_eq!(jobs[0].id, id);
        payloads.push(String::from_utf8(jobs[0].payload.to_vec()).expect("text"));
        broker.settle(vec![ack(&jobs[0]).result("page")]).await;
    }
    payloads
}

#[tokio::test]
async fn a_job_whose_first_payload_is_not_kept_needs_a_new_one() {
    let broker = TestBroker::start().await;
    let id = through_all_stages(&broker, staged(StagePayload::Result)).await;
    let jobs = broker.rerun(of(&[id])).await;
    assert_eq!((jobs[0].outcome(), jobs[0].new_id), (RerunOutcome::NoPayload, 0));
    assert!(jobs[0].problem.contains("call again for this job with a payload"), "{jobs:?}");
    let new = rerun_one(&broker, RerunJobsRequest { payload: Some("url".into()), ..of(&[id]) }).await;
    assert_eq!(through_stages_of(&broker, new.id).await, ["url", "page"]);
    // A large payload is stored in the table howdah.payload, whose partition may be dropped earlier.
    let id = succeeded(&broker, new_job("t", vec![b'x'; 5_000])).await;
    broker.sql(&format!("DELETE FROM howdah.payload WHERE id = {id}")).await;
    let jobs = broker.rerun(of(&[id])).await;
    assert_eq!(jobs[0].outcome(), RerunOutcome::NoPayload);
}
