//! Tests that brokers are notified of jobs that a bulk operation makes ready: brokers with a poll interval of an hour
//! deliver them at once.

use howdah_proto::v1::{BulkFields, bulk_fields::Start};

use super::{moved::to, set::set, undo::undo, *};
use crate::due::sweeps;

/// Two brokers with a poll interval of an hour, which react only to notifications.
struct Quiet {
    other: TestBroker,
    acting: TestBroker,
    sweeps: u64,
}

impl Quiet {
    async fn start() -> Self {
        Self::start_on(&database().await).await
    }

    /// Starts with a task type that permits one running job per limit key. The limit exists before the brokers start, because
    /// brokers keep checking a new limit for a while.
    async fn with_one_slot() -> Self {
        let database = database().await;
        database.sql("INSERT INTO howdah.task_type (name, key_max_running) VALUES ('w', 1)").await;
        Self::start_on(&database).await
    }

    async fn start_on(database: &TestDatabase) -> Self {
        let rarely = |config: &mut howdah_core::config::Config| config.poll_interval = HOUR;
        let other = TestBroker::on_with(database, rarely).await;
        let acting = other.another_with(rarely).await;
        Self { other, acting, sweeps: 0 }
    }

    /// Waits until both brokers listen for notifications and have done their initial sweeps, after which they do not
    /// sweep.
    async fn settle(&mut self) {
        for broker in [&self.other, &self.acting] {
            eventually("a broker that listens", async || broker.metrics().await.contains("\nhowdah_listening 1\n"))
                .await;
            eventually("two sweeps of the broker", async || sweeps(broker).await >= 2).await;
        }
        self.sweeps = sweeps(&self.other).await + sweeps(&self.acting).await;
    }

    /// Asserts that no broker has swept for ready jobs since `settle`.
    async fn are_quiet(&self) {
        assert_eq!(sweeps(&self.other).await + sweeps(&self.acting).await, self.sweeps, "sweeps");
    }
}

fn after(delay: std::time::Duration) -> BulkFields {
    BulkFields { start: Some(Start::Delay(delay.try_into().expect("a delay"))), ..BulkFields::default() }
}

async fn done(broker: &Service, spec: BulkSpec) -> Bulk {
    let bulk = broker.start_bulk(spec).await;
    broker.ended_bulk(bulk.id).await
}

/// Connects a worker with this window, and waits until its subscription is active.
async fn idle(broker: &TestBroker, window: i32) -> Worker {
    let mut worker = broker.worker("w").window(window).await;
    worker.ping().await;
    worker
}

/// Acks the next jobs, and returns their ids.
async fn taken(mut worker: Worker, jobs: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    for job in worker.take(jobs).await {
        ids.push(job.id);
        worker.ack(&job).await;
    }
    ids.sort_unstable();
    ids
}

/// Runs the next scheduled jobs, which must arrive within 40 s. Later, brokers would find the jobs without a notification,
/// because they check all scheduled jobs once a minute.
async fn taken_before_the_next_look(worker: Worker, jobs: usize) -> Vec<i64> {
    tokio::time::timeout(secs(40), taken(worker, jobs)).await.expect("jobs that were announced")
}

#[tokio::test]
async fn workers_of_both_brokers_hear_at_once_of_jobs_that_come_back() {
    let mut brokers = Quiet::start().await;
    brokers.settle().await;
    for broker in [&brokers.other, &brokers.acting] {
        let ids = brokers.acting.enqueue_all(vec!["w"; 3]).await;
        let bulk = done(&brokers.acting, spec(BulkOperation::Cancel, "w")).await;
        let worker = idle(broker, 3).await;
        assert_eq!(done(&brokers.acting, undo(bulk.id)).await.done_count, 3);
        assert_eq!(taken(worker, 3).await, ids);
    }
    brokers.are_quiet().await;
}

#[tokio::test]
async fn workers_of_both_brokers_hear_at_once_of_jobs_that_are_moved_to_their_type() {
    let mut brokers = Quiet::start().await;
    brokers.settle().await;
    for broker in [&brokers.other, &brokers.acting] {
        let ids = brokers.acting.enqueue_all(vec!["v"; 3]).await;
        let worker = idle(broker, 3).await;
        assert_eq!(done(&brokers.acting, to("v", "w")).await.done_count, 3);
        assert_eq!(taken(worker, 3).await, ids);
    }
    brokers.are_quiet().await;
}

#[tokio::test]
async fn a_scheduled_job_that_comes_back_starts_at_its_time() {
    let mut brokers = Quiet::start().await;
    brokers.settle().await;
    let id = brokers.acting.enqueue("w").delay(HOUR).await;
    let bulk = done(&brokers.acting, spec(BulkOperation::Cancel, "w")).await;
    // Makes the restored job due in 500 ms, a time for which no broker has set a timer.
    brokers.acting.sql("UPDATE howdah.bulk_change SET at = now() + interval '500 ms'").await;
    let worker = idle(&brokers.other, 1).await;
    assert_eq!(done(&brokers.acting, undo(bulk.id)).await.done_count, 1);
    assert_eq!(taken_before_the_next_look(worker, 1).await, [id]);
    brokers.are_quiet().await;
}

#[tokio::test]
async fn jobs_with_limits_that_come_back_get_their_slots_at_once() {
    let mut brokers = Quiet::with_one_slot().await;
    let keys = ["a", "b"].map(|key| new_job("w", "").limit_key(key));
    let ids = brokers.acting.enqueue_all(keys).await;
    let bulk = done(&brokers.acting, spec(BulkOperation::Cancel, "w")).await;
    assert_eq!(bulk.done_count, 2);
    brokers.settle().await;
    let worker = idle(&brokers.other, 2).await;
    assert_eq!(done(&brokers.acting, undo(bulk.id)).await.done_count, 2);
    assert_eq!(taken(worker, 2).await, ids);
    brokers.are_quiet().await;
}

#[tokio::test]
async fn workers_of_both_brokers_hear_at_once_of_jobs_that_are_set_to_start_now_or_soon() {
    let mut brokers = Quiet::start().await;
    brokers.settle().await;
    for (broker, delay) in [(&brokers.other, 0), (&brokers.acting, 0), (&brokers.other, 500)] {
        let ids = brokers.acting.enqueue_all(vec![new_job("w", "").delay(HOUR); 3]).await;
        let worker = idle(broker, 3).await;
        assert_eq!(done(&brokers.acting, set("w", after(millis(delay)))).await.done_count, 3);
        assert_eq!(taken_before_the_next_look(worker, 3).await, ids);
    }
    brokers.are_quiet().await;
}

/// SQL that delays each next batch of bulk operations by an hour.
const HOURS_APART: &str = "
    CREATE FUNCTION howdah.hours_apart() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN NEW.next_at := NEW.next_at + interval '1 hour'; RETURN NEW; END $$;
    CREATE TRIGGER hours_apart BEFORE UPDATE ON howdah.bulk FOR EACH ROW
    WHEN (NEW.state = 'running' AND NEW.next_at > OLD.next_at) EXECUTE FUNCTION howdah.hours_apart()";

#[tokio::test]
async fn a_job_that_is_set_to_start_later_or_moved_frees_its_slot_at_once() {
    let mut brokers = Quiet::with_one_slot().await;
    brokers.acting.sql(HOURS_APART).await;
    for (change, state) in [(set("w", after(HOUR)), JobState::Scheduled), (to("w", "v"), JobState::Ready)] {
        let has_slot = brokers.acting.enqueue("w").limit_key("l").await;
        let waits = brokers.acting.enqueue("w").limit_key("l").await;
        brokers.acting.until_state(has_slot, JobState::Ready).await;
        assert_eq!(brokers.acting.state(waits).await, JobState::Waiting);
        brokers.settle().await;
        // The operation changes only one job here: its next batch is an hour away and cannot free the slot.
        let one = BulkSpec { state: JobState::Ready as i32, max_jobs_per_second: 1, ..change };
        let bulk = brokers.acting.start_bulk(one).await;
        brokers.acting.begun_bulk(bulk.id).await;
        brokers.acting.cancel_bulk(bulk.id).await;
        brokers.acting.until_state(waits, JobState::Ready).await;
        assert_eq!(brokers.acting.state(has_slot).await, state);
        brokers.are_quiet().await;
        brokers.acting.cancel(&[has_slot, waits]).await;
    }
}
