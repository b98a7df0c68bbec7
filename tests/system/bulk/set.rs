//! Tests the bulk operation set: it changes attempts, start times, timeouts and tags of jobs in each state, and skips jobs that
//! already have the values.

use howdah_core::job::Limits;
use howdah_proto::v1::{BulkFields, SettleStatus, bulk_fields::Start};

use super::*;

pub(super) fn set(task_type: &str, fields: BulkFields) -> BulkSpec {
    BulkSpec { fields: Some(fields), ..spec(BulkOperation::Set, task_type) }
}

async fn done(broker: &Service, spec: BulkSpec) -> Bulk {
    let bulk = broker.start_bulk(spec).await;
    broker.ended_bulk(bulk.id).await
}

fn tags(tags: &[&str]) -> Vec<String> {
    tags.iter().map(|tag| (*tag).to_owned()).collect()
}

fn attempts(n: i32) -> BulkFields {
    BulkFields { max_attempts: Some(n), ..BulkFields::default() }
}

fn after(delay: std::time::Duration) -> BulkFields {
    BulkFields { start: Some(Start::Delay(delay.try_into().expect("a delay"))), ..BulkFields::default() }
}

/// Creates one job in each state: dead, leased, ready, scheduled, waiting.
async fn one_in_each_state(broker: &Service, task_type: &str) -> (Worker, [i64; 5]) {
    let died = dead(broker, task_type, &["no"]).await[0];
    let mut worker = broker.worker(task_type).window(1).await;
    let running = broker.enqueue(task_type).await;
    assert_eq!(worker.next().await.id, running);
    let ready = broker.enqueue(task_type).await;
    let scheduled = broker.enqueue(task_type).delay(HOUR).await;
    let waiting = broker.enqueue(task_type).after(&[scheduled]).await;
    (worker, [died, running, ready, scheduled, waiting])
}

#[tokio::test]
async fn jobs_in_each_state_get_attempts_a_timeout_and_tags_once() {
    let broker = TestBroker::start().await;
    let (_worker, ids) = one_in_each_state(&broker, "s").await;
    let fields = BulkFields {
        timeout: Some(secs(90).try_into().expect("a timeout")),
        add_tags: tags(&["red", "blue"]),
        ..attempts(7)
    };
    assert_eq!(broker.preview(set("s", fields.clone())).await.selected_count, 5);
    let bulk = done(&broker, set("s", fields.clone())).await;
    assert_eq!((bulk.done_count, bulk.skipped_count, bulk.failed_count), (5, 0, 0), "{bulk:?}");
    for id in ids {
        let job = broker.job(id).await;
        assert_eq!((job.max_attempts, job.tags), (7, tags(&["red", "blue"])), "{id}");
    }
    let timeouts =
        "SELECT count(*) FROM (SELECT timeout_ms FROM howdah.ready UNION ALL SELECT timeout_ms FROM howdah.leased
                    UNION ALL SELECT timeout_ms FROM howdah.scheduled UNION ALL SELECT timeout_ms FROM howdah.waiting
                    UNION ALL SELECT timeout_ms FROM howdah.dead) j WHERE timeout_ms = 90000";
    assert_eq!(broker.count(timeouts).await, 5);
    let conditions = Some(v1::JobConditions { tag: "blue".into(), ..Default::default() });
    let find = v1::SearchJobsRequest { task_type: "s".into(), conditions, ..Default::default() };
    let found = broker.jobs().search_jobs(find).await.expect("a search").into_inner();
    assert_eq!(found.jobs.len(), 5);
    // All jobs have the values already, so none is selected.
    assert_eq!(broker.preview(set("s", fields.clone())).await.selected_count, 0);
    assert_eq!(done(&broker, set("s", fields)).await.done_count, 0);
    let less = BulkFields { remove_tags: tags(&["red", "never"]), ..BulkFields::default() };
    assert_eq!(done(&broker, set("s", less)).await.done_count, 5);
    assert_eq!(broker.job(ids[0]).await.tags, tags(&["blue"]));
}

#[tokio::test]
async fn max_attempts_of_a_running_job_is_not_set_below_its_current_attempt() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("u").window(1).await;
    let id = broker.enqueue(new_job("u", "").max_attempts(9)).await;
    for _ in 0..2 {
        let job = worker.next().await;
        worker.nack(&job, "again").retry_after(secs(0)).await;
    }
    let third = worker.next().await;
    // Sets `max_attempts` while the job runs, and while it waits for its next attempt.
    assert_eq!(done(&broker, set("u", attempts(1))).await.done_count, 1);
    assert_eq!((third.attempt, broker.job(id).await.max_attempts), (3, 3));
    worker.nack(&third, "no").await;
    broker.until_state(id, JobState::Dead).await;
    assert_eq!(done(&broker, set("u", attempts(1))).await.done_count, 1);
    assert_eq!(broker.job(id).await.max_attempts, 1);
    broker.retry(&[id]).await;
    let last = worker.next().await;
    assert_eq!(worker.nack(&last, "no").status().await, SettleStatus::Ok);
    broker.until_state(id, JobState::Dead).await;
}

#[tokio::test]
async fn a_new_start_time_makes_scheduled_jobs_ready_and_ready_jobs_scheduled() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all(vec![new_job("t", "").delay(HOUR); 3]).await;
    let mut worker = broker.worker("t").window(3).await;
    assert_eq!(done(&broker, set("t", after(secs(0)))).await.done_count, 3);
    let mut taken = worker.take(3).await;
    taken.sort_by_key(|job| job.id);
    assert_eq!(taken.iter().map(|job| job.id).collect::<Vec<_>>(), ids);
    for job in &taken {
        worker.ack(job).await;
    }
    worker.vanish();
    let ready = broker.enqueue("t").await;
    let limited = broker.enqueue("t").limit_key("l").await;
    let bulk = done(&broker, set("t", after(HOUR * 2))).await;
    assert_eq!((bulk.done_count, bulk.skipped_count), (2, 0));
    // The bulk operation stores the delay as an absolute time.
    assert!(matches!(bulk.spec.and_then(|spec| spec.fields).and_then(|fields| fields.start), Some(Start::RunAt(_))));
    for id in [ready, limited] {
        assert_eq!(broker.state(id).await, JobState::Scheduled, "{id}");
    }
    let soon = "SELECT count(*) FROM howdah.scheduled WHERE run_at BETWEEN now() + interval '110 min' AND now() + interval '2 h'";
    assert_eq!(broker.count(soon).await, 2);
    assert_eq!(done(&broker, set("t", after(secs(0)))).await.done_count, 2);
    let mut worker = broker.worker("t").window(3).await;
    assert_eq!(worker.take(2).await.len(), 2);
}

#[tokio::test]
async fn a_waiting_job_starts_when_its_parent_has_ended_and_not_before_its_time() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("p").await;
    let waits = broker.enqueue("w").after(&[parent]).await;
    assert_eq!(done(&broker, set("w", after(HOUR))).await.done_count, 1);
    assert_eq!(broker.state(waits).await, JobState::Waiting);
    let mut worker = broker.worker("p").window(1).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    broker.until_state(waits, JobState::Scheduled).await;
    assert_eq!(done(&broker, set("w", after(secs(0)))).await.done_count, 1);
    broker.until_state(waits, JobState::Ready).await;
}

#[tokio::test]
async fn a_start_time_is_not_for_jobs_that_run_or_are_dead() {
    let broker = TestBroker::start().await;
    let (_worker, [died, running, ..]) = one_in_each_state(&broker, "s").await;
    assert_eq!(broker.preview(set("s", after(HOUR))).await.selected_count, 3);
    assert_eq!(done(&broker, set("s", BulkFields { max_attempts: Some(5), ..after(HOUR) })).await.done_count, 3);
    for (id, state) in [(died, JobState::Dead), (running, JobState::Leased)] {
        assert_eq!(broker.state(id).await, state);
        assert_ne!(broker.job(id).await.max_attempts, 5);
    }
    let dead = BulkSpec { state: JobState::Dead as i32, ..set("s", after(HOUR)) };
    let request = PreviewBulkRequest { spec: Some(dead) };
    let refused = broker.bulks().preview_bulk(request).await.map(drop).unwrap_err();
    assert_eq!(Refusal::from(refused).field, "spec.state");
}

#[tokio::test]
async fn a_job_that_cannot_take_the_new_fields_is_skipped_with_the_reason() {
    let broker = TestBroker::start().await;
    // Uses the maximum number of tags, to check that the SQL function and the limits use the same constant.
    let most = Limits::TAGS;
    let all: Vec<String> = (0..most).map(|n| n.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let full = broker.enqueue(new_job("f", "").tags(&all)).await;
    let one_less = broker.enqueue(new_job("f", "").tags(&all[1..])).await;
    let plain = broker.enqueue("f").await;
    let more = BulkFields { add_tags: tags(&["more"]), ..BulkFields::default() };
    let bulk = done(&broker, set("f", more)).await;
    assert_eq!((bulk.done_count, bulk.skipped_count), (2, 1));
    let problem = format!("it would have {} tags; at most {most} are allowed", most + 1);
    assert_eq!(bulk.problem, format!("job {full} was not changed: {problem}"));
    assert_eq!(broker.job(one_less).await.tags.len(), most);
    assert_eq!(broker.job(plain).await.tags, tags(&["more"]));
    let expires = broker.enqueue("e").expire_after(HOUR).await;
    let bulk = done(&broker, set("e", after(HOUR * 2))).await;
    assert_eq!((bulk.done_count, bulk.skipped_count), (0, 1));
    assert!(bulk.problem.contains("it has to start before that time"), "{}", bulk.problem);
    assert_eq!(broker.state(expires).await, JobState::Ready);
}
