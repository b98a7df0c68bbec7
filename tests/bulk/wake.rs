//! What a bulk operation makes ready is announced: brokers that look for work by themselves once an hour have it at once.

use howdah_proto::v1::{BulkFields, TaskTypeSettings, bulk_fields::Start};

use super::{moved::to, set::set, undo::undo, *};

/// Two brokers whose idle workers get only what was announced.
async fn without_polls() -> (TestBroker, TestBroker) {
    TestBroker::pair_with(|config| config.poll_interval = HOUR).await
}

fn after(delay: std::time::Duration) -> BulkFields {
    BulkFields { start: Some(Start::Delay(delay.try_into().expect("a delay"))), ..BulkFields::default() }
}

async fn done(broker: &Service, spec: BulkSpec) -> Bulk {
    let bulk = broker.start_bulk(spec).await;
    broker.ended_bulk(bulk.id).await
}

/// A worker that has waited for a while, and wants as many jobs.
async fn idle(broker: &TestBroker, window: i32) -> Worker {
    let mut worker = broker.worker("w").window(window).await;
    worker.ping().await;
    worker
}

async fn taken(mut worker: Worker, jobs: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    for job in worker.take(jobs).await {
        ids.push(job.id);
        worker.ack(&job).await;
    }
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn workers_of_both_brokers_hear_at_once_of_jobs_that_come_back() {
    let (other, undoing) = without_polls().await;
    for broker in [&other, &undoing] {
        let ids = undoing.enqueue_all(vec!["w"; 3]).await;
        let bulk = done(&undoing, spec(BulkOperation::Cancel, "w")).await;
        let worker = idle(broker, 3).await;
        assert_eq!(done(&undoing, undo(bulk.id)).await.done_count, 3);
        assert_eq!(taken(worker, 3).await, ids);
    }
}

#[tokio::test]
async fn a_scheduled_job_that_comes_back_starts_at_its_time() {
    let (other, undoing) = without_polls().await;
    let id = undoing.enqueue("w").delay(HOUR).await;
    let bulk = done(&undoing, spec(BulkOperation::Cancel, "w")).await;
    // No broker has an alarm for this time.
    undoing.sql("UPDATE howdah.bulk_change SET at = now() + interval '500 ms'").await;
    let worker = idle(&other, 1).await;
    assert_eq!(done(&undoing, undo(bulk.id)).await.done_count, 1);
    assert_eq!(taken(worker, 1).await, [id]);
}

#[tokio::test]
async fn jobs_with_limits_that_come_back_get_their_slots_at_once() {
    let (other, undoing) = without_polls().await;
    undoing.set("w", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    undoing.settings_reach(&other).await;
    let ids = undoing.enqueue_all([new_job("w", "").limit_key("a"), new_job("w", "").limit_key("b")]).await;
    let bulk = done(&undoing, spec(BulkOperation::Cancel, "w")).await;
    assert_eq!(bulk.done_count, 2);
    let worker = idle(&other, 2).await;
    assert_eq!(done(&undoing, undo(bulk.id)).await.done_count, 2);
    assert_eq!(taken(worker, 2).await, ids);
}

#[tokio::test]
async fn workers_of_both_brokers_hear_at_once_of_jobs_that_are_set_to_start_now_or_soon() {
    let (other, setting) = without_polls().await;
    for (broker, delay) in [(&other, secs(0)), (&setting, secs(0)), (&other, millis(500))] {
        let ids = setting.enqueue_all(vec![new_job("w", "").delay(HOUR); 3]).await;
        let worker = idle(broker, 3).await;
        assert_eq!(done(&setting, set("w", after(delay))).await.done_count, 3);
        assert_eq!(taken(worker, 3).await, ids);
    }
}

#[tokio::test]
async fn a_job_that_is_set_to_start_later_or_moved_frees_its_slot_at_once() {
    let (other, changing) = without_polls().await;
    changing.set("w", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    changing.settings_reach(&other).await;
    for (change, state) in [(set("w", after(HOUR)), JobState::Scheduled), (to("w", "v"), JobState::Ready)] {
        let has_slot = changing.enqueue("w").limit_key("l").await;
        let waits = changing.enqueue("w").limit_key("l").await;
        assert_eq!((changing.state(has_slot).await, changing.state(waits).await), (JobState::Ready, JobState::Waiting));
        // One job; the next one comes a second later.
        let one = BulkSpec { state: JobState::Ready as i32, max_jobs_per_second: 1, ..change };
        let bulk = changing.start_bulk(one).await;
        changing.begun_bulk(bulk.id).await;
        changing.cancel_bulk(bulk.id).await;
        changing.until_state(waits, JobState::Ready).await;
        assert_eq!(changing.state(has_slot).await, state);
        changing.cancel(&[has_slot, waits]).await;
    }
}
