//! Tests bulk operations, which change many jobs in the background. Each job is changed once, even if brokers stop or
//! crash.

mod commands; // howdah bulk
mod faults; // killed, stopped and surplus brokers; locked jobs
mod moved; // moving jobs to another type
mod moved_options; // moving jobs with fair keys, stages, fallbacks and keys
mod named; // jobs reported as ended
mod refused; // junk, rights, too many
mod set; // attempts, start times, timeouts, tags
mod undo; // restoring cancelled and discarded jobs
mod wake; // waking idle workers

use howdah_proto::v1::{
    self, Bulk, BulkOperation, BulkSpec, BulkState, JobState, PreviewBulkRequest, PreviewBulkResponse, StartBulkRequest,
};

use crate::support::*;

/// Specifies a bulk operation on all jobs of a task type.
fn spec(operation: BulkOperation, task_type: &str) -> BulkSpec {
    BulkSpec { operation: operation as i32, task_type: task_type.into(), ..BulkSpec::default() }
}

/// Specifies a bulk operation on all jobs of a task type that changes one job per second, so that it stays active
/// during the test.
fn slow(operation: BulkOperation, task_type: &str) -> BulkSpec {
    BulkSpec { max_jobs_per_second: 1, ..spec(operation, task_type) }
}

/// Bulk calls that an operator makes, and checks of bulk operations.
trait Bulks {
    async fn preview(&self, spec: BulkSpec) -> PreviewBulkResponse;
    async fn start_bulk(&self, spec: BulkSpec) -> Bulk;
    async fn bulk(&self, id: i64) -> Bulk;
    async fn pause_bulk(&self, id: i64) -> Bulk;
    async fn resume_bulk(&self, id: i64) -> Bulk;
    async fn cancel_bulk(&self, id: i64) -> Bulk;
    /// Waits until the bulk operation has ended.
    async fn ended_bulk(&self, id: i64) -> Bulk;
    /// Waits until the bulk operation has changed at least one job.
    async fn begun_bulk(&self, id: i64);
    /// Removes the rate limit of the bulk operation.
    async fn hurry(&self, id: i64);
    /// Number of jobs that bulk operations have changed, according to the audit log.
    async fn audited(&self) -> i64;
}

impl Bulks for Service {
    async fn preview(&self, spec: BulkSpec) -> PreviewBulkResponse {
        let request = PreviewBulkRequest { spec: Some(spec) };
        with_timeout("a preview", self.bulks().preview_bulk(request)).await.expect("a preview").into_inner()
    }

    async fn start_bulk(&self, spec: BulkSpec) -> Bulk {
        let request = StartBulkRequest { spec: Some(spec), ..Default::default() };
        with_timeout("a start", self.bulks().start_bulk(request))
            .await
            .expect("a start")
            .into_inner()
            .bulk
            .expect("one")
    }

    async fn bulk(&self, id: i64) -> Bulk {
        let request = v1::GetBulkRequest { id };
        with_timeout("a bulk operation", self.bulks().get_bulk(request))
            .await
            .expect("a bulk operation")
            .into_inner()
            .bulk
            .expect("one")
    }

    async fn pause_bulk(&self, id: i64) -> Bulk {
        let request = v1::PauseBulkRequest { id };
        with_timeout("a pause", self.bulks().pause_bulk(request))
            .await
            .expect("a pause")
            .into_inner()
            .bulk
            .expect("one")
    }

    async fn resume_bulk(&self, id: i64) -> Bulk {
        let request = v1::ResumeBulkRequest { id };
        with_timeout("a resume", self.bulks().resume_bulk(request))
            .await
            .expect("a resume")
            .into_inner()
            .bulk
            .expect("one")
    }

    async fn cancel_bulk(&self, id: i64) -> Bulk {
        let request = v1::CancelBulkRequest { id };
        with_timeout("a cancel", self.bulks().cancel_bulk(request))
            .await
            .expect("a cancel")
            .into_inner()
            .bulk
            .expect("one")
    }

    async fn ended_bulk(&self, id: i64) -> Bulk {
        let ended = format!("SELECT ended IS NOT NULL FROM howdah.bulk WHERE id = {id}");
        self.until("the end of a bulk operation", &ended).await;
        self.bulk(id).await
    }

    async fn begun_bulk(&self, id: i64) {
        let begun = format!("SELECT done > 0 FROM howdah.bulk WHERE id = {id}");
        self.until("the first job of a bulk operation", &begun).await;
    }

    async fn hurry(&self, id: i64) {
        self.sql(&format!("UPDATE howdah.bulk SET jobs_per_s = NULL, next_at = now() WHERE id = {id}")).await;
    }

    async fn audited(&self) -> i64 {
        self.count("SELECT coalesce(sum(count), 0)::bigint FROM howdah.audit WHERE reason LIKE 'bulk operation %'")
            .await
    }
}

/// Creates dead jobs of a type, one job for each error.
async fn dead(broker: &Service, task_type: &str, errors: &[&str]) -> Vec<i64> {
    let mut worker = broker.worker(task_type).window(1_000).await;
    let mut ids = Vec::new();
    for error in errors {
        ids.push(broker.enqueue(task_type).max_attempts(1).await);
        let job = worker.next().await;
        worker.nack(&job, error).await;
    }
    for id in &ids {
        broker.until_state(*id, JobState::Dead).await;
    }
    worker.vanish();
    ids
}

#[tokio::test]
async fn a_preview_counts_the_jobs_shows_three_of_them_and_changes_nothing() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all(vec![new_job("p", "secret"); 5]).await;
    broker.enqueue("p").delay(HOUR).await;
    broker.enqueue("other").await;
    let preview = broker.preview(spec(BulkOperation::Cancel, "p")).await;
    assert_eq!((preview.selected_count, preview.has_more, preview.examples.len()), (6, false, 3));
    assert!(preview.examples.iter().all(|job| job.payload.is_empty() && job.task_type == "p"));
    assert!(preview.expected_duration.is_some());
    let ready = BulkSpec { state: JobState::Ready as i32, ..spec(BulkOperation::Cancel, "p") };
    let preview = broker.preview(ready).await;
    let examples: Vec<i64> = preview.examples.iter().map(|job| job.id).collect();
    assert_eq!((preview.selected_count, &examples[..]), (5, &ids[..3]));
    for nothing in [spec(BulkOperation::Discard, "p"), spec(BulkOperation::Cancel, "never.seen")] {
        assert_eq!(broker.preview(nothing).await.selected_count, 0);
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job WHERE state IN ('ready', 'scheduled')").await, 7);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.bulk").await, 0);
}

#[tokio::test]
async fn a_preview_counts_to_ten_thousand_and_then_says_more() {
    let broker = TestBroker::start().await;
    for _ in 0..2 {
        broker.enqueue_all(vec!["m"; 5_000]).await;
    }
    let all = || spec(BulkOperation::Reprioritize, "m");
    let preview = broker.preview(BulkSpec { priority: Some(1), ..all() }).await;
    assert_eq!((preview.selected_count, preview.has_more), (10_000, false));
    broker.enqueue("m").await;
    let preview = broker.preview(BulkSpec { priority: Some(1), ..all() }).await;
    assert_eq!((preview.selected_count, preview.has_more), (10_000, true));
    // Jobs that already have the requested priority are not selected.
    assert_eq!(broker.preview(BulkSpec { priority: Some(0), ..all() }).await.selected_count, 0);
}

#[tokio::test]
async fn a_bulk_retry_runs_the_jobs_of_an_error_group_again_and_leaves_the_others() {
    let broker = TestBroker::start().await;
    let ids = dead(&broker, "r", &["no host 1", "no host 2", "too large"]).await;
    let group = BulkSpec { error_group: "no host 9".into(), ..spec(BulkOperation::Retry, "r") };
    assert_eq!(broker.preview(group.clone()).await.selected_count, 2);
    let bulk = broker.start_bulk(group).await;
    assert_eq!((bulk.selected_count, bulk.has_more), (2, false));
    let ended = broker.ended_bulk(bulk.id).await;
    assert_eq!((ended.state(), ended.done_count, ended.failed_count), (BulkState::Completed, 2, 0));
    assert!(ended.end_time.is_some());
    for (id, state) in ids.iter().zip([JobState::Ready, JobState::Ready, JobState::Dead]) {
        assert_eq!(broker.state(*id).await, state);
    }
    // Workers receive the retried jobs at once.
    let mut worker = broker.worker("r").window(10).await;
    assert_eq!(worker.take(2).await.len(), 2);
}

#[tokio::test]
async fn a_bulk_retry_runs_jobs_that_wait_for_their_next_attempt_and_no_job_twice() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("b").window(10).await;
    let waits = broker.enqueue(new_job("b", "x").max_attempts(9)).await;
    let job = worker.next().await;
    worker.nack(&job, "later").retry_after(HOUR).await;
    broker.until_state(waits, JobState::Scheduled).await;
    let never_ran = broker.enqueue("b").delay(HOUR).await;
    let bulk = broker.start_bulk(spec(BulkOperation::Retry, "b")).await;
    let again = worker.next().await;
    assert_eq!(again.id, waits);
    // The bulk operation may still be selecting jobs when the retried job fails again. It must not retry the job a
    // second time.
    worker.nack(&again, "never").no_retry().await;
    broker.until_state(waits, JobState::Dead).await;
    assert_eq!(broker.ended_bulk(bulk.id).await.done_count, 1);
    assert_eq!(broker.state(waits).await, JobState::Dead);
    assert_eq!(broker.state(never_ran).await, JobState::Scheduled);
}

#[tokio::test]
async fn a_bulk_retry_skips_jobs_whose_key_another_job_holds() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("k").await;
    let dies = broker.enqueue("k").key("k").max_attempts(1).await;
    let job = worker.next().await;
    worker.nack(&job, "no").await;
    broker.until_state(dies, JobState::Dead).await;
    broker.enqueue("k").key("k").delay(HOUR).await;
    let bulk = broker.start_bulk(spec(BulkOperation::Retry, "k")).await;
    let ended = broker.ended_bulk(bulk.id).await;
    assert_eq!((ended.done_count, ended.skipped_count, ended.failed_count), (0, 1, 0));
    assert_eq!(broker.state(dies).await, JobState::Dead);
}

#[tokio::test]
async fn a_bulk_cancel_cancels_jobs_in_every_state_and_tells_their_workers() {
    let broker = TestBroker::start().await;
    let died = dead(&broker, "c", &["no"]).await;
    let mut worker = broker.worker("c").window(1).await;
    let running = broker.enqueue("c").await;
    let job = worker.next().await;
    let ready = broker.enqueue("c").await;
    let scheduled = broker.enqueue("c").delay(HOUR).await;
    let waiting = broker.enqueue("c").after(&[ready]).await;
    let other = broker.enqueue("other").await;
    let bulk = broker.start_bulk(spec(BulkOperation::Cancel, "c")).await;
    worker.cancelled().await;
    let ended = broker.ended_bulk(bulk.id).await;
    assert_eq!((ended.state(), ended.failed_count), (BulkState::Completed, 0));
    for id in [died[0], running, ready, scheduled, waiting] {
        assert_eq!(broker.state(id).await, JobState::Cancelled, "{id}");
    }
    assert_eq!((job.id, broker.state(other).await), (running, JobState::Ready));
}

#[tokio::test]
async fn a_bulk_discard_moves_dead_jobs_to_history_and_no_others() {
    let broker = TestBroker::start().await;
    let ids = dead(&broker, "d", &["a", "b"]).await;
    let ready = broker.enqueue("d").await;
    let bulk = broker.start_bulk(spec(BulkOperation::Discard, "d")).await;
    assert_eq!(broker.ended_bulk(bulk.id).await.done_count, 2);
    for id in ids {
        assert_eq!(broker.state(id).await, JobState::Discarded);
    }
    assert_eq!(broker.state(ready).await, JobState::Ready);
}

#[tokio::test]
async fn a_bulk_reprioritize_changes_the_priority_of_each_job_once() {
    let broker = TestBroker::start().await;
    let first = broker.enqueue_all(["q", "q", "q"]).await;
    let delayed = broker.enqueue("q").delay(HOUR).await;
    let last = broker.enqueue(new_job("q", "x").priority(3)).await;
    let change = BulkSpec { priority: Some(7), ..spec(BulkOperation::Reprioritize, "q") };
    let ended = broker.ended_bulk(broker.start_bulk(change).await.id).await;
    assert_eq!((ended.done_count, ended.skipped_count), (5, 0));
    assert_eq!((broker.job(delayed).await.priority, broker.job(first[0]).await.priority), (7, 7));
    let state = JobState::Ready as i32;
    let change = BulkSpec { priority: Some(-7), state, ..spec(BulkOperation::Reprioritize, "q") };
    assert_eq!(broker.ended_bulk(broker.start_bulk(change).await.id).await.done_count, 4);
    assert_eq!(broker.job(delayed).await.priority, 7);
    let mut worker = broker.worker("q").window(1).await;
    assert_eq!(worker.next().await.id, first[0]);
    assert_eq!(broker.job(last).await.priority, -7);
}

#[tokio::test]
async fn a_paused_bulk_operation_changes_nothing_more_and_goes_on_where_it_was() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec!["p"; 600]).await;
    let bulk = broker.start_bulk(slow(BulkOperation::Cancel, "p")).await;
    broker.begun_bulk(bulk.id).await;
    let paused = broker.pause_bulk(bulk.id).await;
    assert_eq!((paused.state(), paused.broker.as_str()), (BulkState::Paused, ""));
    broker.hurry(bulk.id).await;
    // Another bulk operation on the same jobs is not blocked by the paused operation.
    let other = broker.start_bulk(spec(BulkOperation::Discard, "p")).await;
    broker.ended_bulk(other.id).await;
    let left = async || broker.count("SELECT count(*) FROM howdah.ready").await;
    assert_eq!(left().await, 600 - paused.done_count);
    assert_eq!(broker.pause_bulk(bulk.id).await.state(), BulkState::Paused, "again");
    assert_eq!(broker.bulk(bulk.id).await.done_count, paused.done_count);
    assert_eq!(broker.resume_bulk(bulk.id).await.state(), BulkState::Running);
    let ended = broker.ended_bulk(bulk.id).await;
    assert_eq!((ended.state(), ended.done_count, left().await), (BulkState::Completed, 600, 0));
    assert_eq!(broker.audited().await, 600);
    assert_eq!(other.selected_count, 0);
}

#[tokio::test]
async fn a_cancelled_bulk_operation_leaves_what_it_has_done_and_never_goes_on() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec!["h"; 600]).await;
    let bulk = broker.start_bulk(slow(BulkOperation::Cancel, "h")).await;
    broker.begun_bulk(bulk.id).await;
    let ended = broker.cancel_bulk(bulk.id).await;
    assert_eq!(ended.state(), BulkState::Cancelled);
    assert!(ended.done_count > 0 && ended.done_count < 600 && ended.end_time.is_some());
    for state in ["ready", "cancelled"] {
        let expected = if state == "ready" { 600 - ended.done_count } else { ended.done_count };
        let sql = format!("SELECT count(*) FROM howdah.job WHERE state = '{state}'");
        assert_eq!(broker.count(&sql).await, expected, "{state}");
    }
    assert_eq!(broker.cancel_bulk(bulk.id).await.state(), BulkState::Cancelled, "again");
    let refused = broker.bulks().resume_bulk(v1::ResumeBulkRequest { id: bulk.id }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
}

#[tokio::test]
async fn jobs_that_come_after_the_start_are_not_changed() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec!["l"; 100]).await;
    let bulk = broker.start_bulk(slow(BulkOperation::Cancel, "l")).await;
    let late = broker.enqueue("l").await;
    broker.hurry(bulk.id).await;
    assert_eq!(broker.ended_bulk(bulk.id).await.done_count, 100);
    assert_eq!(broker.state(late).await, JobState::Ready);
}

#[tokio::test]
async fn each_transaction_is_audited_with_the_principal_and_reason_of_the_bulk_operation() {
    let guarded = crate::access::Guarded::start().await;
    let ids = guarded.admin.enqueue_all(vec!["a"; 3]).await;
    let ann = guarded.caller("ann", &["operate:a", "read:a"]).await;
    let mut request =
        tonic::Request::new(StartBulkRequest { spec: Some(spec(BulkOperation::Cancel, "a")), ..Default::default() });
    request.metadata_mut().insert("howdah-reason", "ticket 42".parse().expect("ASCII"));
    let bulk = ann.bulks().start_bulk(request).await.expect("a start").into_inner().bulk.expect("one");
    assert_eq!((&*bulk.principal, &*bulk.reason), ("ann", "ticket 42"));
    guarded.admin.ended_bulk(bulk.id).await;
    let entries = "SELECT concat_ws(' ', principal, method, count, types[1], reason) FROM howdah.audit
                   WHERE method IN ('StartBulk', 'CancelJobs') ORDER BY id";
    let rows = guarded.broker.database.connect().await.query(entries, &[]).await.expect(entries);
    let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let number = bulk.id;
    assert_eq!(
        rows,
        [
            "ann StartBulk 1 a ticket 42".to_owned(),
            format!("ann CancelJobs {} a bulk operation {number}: ticket 42", ids.len())
        ]
    );
}
