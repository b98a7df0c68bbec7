//! Tests the bulk operation move: jobs change their task type and keep their state and options.

use howdah_proto::v1::{SettleStatus, TaskTypeSettings};
use tonic::Code;

use super::*;
use crate::access::Guarded;

pub(super) fn to(task_type: &str, to: &str) -> BulkSpec {
    BulkSpec { to_task_type: to.into(), ..spec(BulkOperation::Move, task_type) }
}

pub(super) async fn moved(broker: &Service, spec: BulkSpec) -> Bulk {
    let bulk = broker.start_bulk(spec).await;
    broker.ended_bulk(bulk.id).await
}

/// Returns all stored data of a type's unfinished jobs, except the type and the last token, which a move clears.
async fn of_type(broker: &Service, task_type: &str) -> String {
    let all = |table: &str, at: &str| {
        format!(
            "SELECT '{table}' AS state, id, rank, created, timeout_ms, {at} AS at, attempt, max_attempts, priority, key,
                    headers, options, failures, payload
             FROM howdah.{table} WHERE type_id = (SELECT id FROM howdah.task_type WHERE name = '{task_type}')"
        )
    };
    let tables = [("ready", "NULL::timestamptz"), ("scheduled", "run_at"), ("waiting", "NULL"), ("dead", "died")];
    let tables: Vec<String> = tables.iter().map(|(table, at)| all(table, at)).collect();
    let sql = format!("SELECT string_agg(j::text, E'\\n' ORDER BY id) FROM ({}) j", tables.join(" UNION ALL "));
    let text: Option<String> = broker.database.connect().await.query_one(&sql, &[]).await.expect("jobs").get(0);
    text.unwrap_or_default()
}

#[tokio::test]
async fn jobs_in_each_state_keep_what_they_are_and_run_in_the_other_type() {
    let broker = TestBroker::start().await;
    let died = dead(&broker, "a", &["no host"]).await[0];
    let mut worker = broker.worker("a").window(1).await;
    let running = broker.enqueue("a").await;
    let job = worker.next().await;
    let ready = broker.enqueue(new_job("a", "payload").priority(3).header("h", "1").tags(&["red"])).await;
    let scheduled = broker.enqueue(new_job("a", "x").delay(HOUR).key("k").timeout(secs(60))).await;
    let waiting = broker.enqueue(new_job("a", "x").after(&[ready])).await;
    let before = of_type(&broker, "a").await;
    assert_eq!(before.lines().count(), 4);
    let preview = broker.preview(to("a", "b")).await;
    assert_eq!((preview.selected_count, preview.examples.len()), (4, 3));
    assert_eq!(
        broker.count("SELECT count(*) FROM howdah.task_type WHERE name = 'b'").await,
        0,
        "a preview created the task type b"
    );
    let bulk = moved(&broker, to("a", "b")).await;
    assert_eq!((bulk.state(), bulk.done_count, bulk.skipped_count), (BulkState::Completed, 4, 0), "{bulk:?}");
    assert_eq!((of_type(&broker, "a").await, of_type(&broker, "b").await), (String::new(), before));
    for (id, state) in [
        (died, JobState::Dead),
        (ready, JobState::Ready),
        (scheduled, JobState::Scheduled),
        (waiting, JobState::Waiting),
    ] {
        let job = broker.job(id).await;
        assert_eq!((job.state(), &*job.task_type), (state, "b"), "{id}");
    }
    // The move does not change a running job, which stays with its worker.
    assert_eq!((job.id, &*broker.job(running).await.task_type), (running, "a"));
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    // A search in the new type finds the moved job by its tag, and the job holds its key there.
    let conditions = Some(v1::JobConditions { tag: "red".into(), ..Default::default() });
    let tagged = v1::SearchJobsRequest { task_type: "b".into(), conditions, ..Default::default() };
    let found = broker.jobs().search_jobs(tagged).await.expect("a search").into_inner();
    assert_eq!(found.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [ready]);
    assert_eq!(broker.enqueue("b").key("k").outcome().await.id, scheduled);
    assert_ne!(broker.enqueue("a").key("k").delay(HOUR).await, scheduled, "the old type still holds the key");
    let mut other = broker.worker("b").window(1).await;
    for id in [ready, waiting] {
        let job = other.next().await;
        assert_eq!((job.id, &*job.task_type), (id, "b"));
        other.ack(&job).await;
    }
}

#[tokio::test]
async fn moved_jobs_are_ordered_by_priority_and_age_among_the_jobs_of_the_new_type() {
    let broker = TestBroker::start().await;
    // The other type has another `priority_step`, so the move computes new ranks.
    let hour = Some(HOUR.try_into().expect("an hour"));
    broker.set("b", TaskTypeSettings { priority_step: hour, ..Default::default() }).await;
    let first = broker.enqueue(new_job("a", "").priority(2)).await;
    let between = broker.enqueue(new_job("b", "").priority(2)).await;
    let last = broker.enqueue(new_job("a", "").priority(2)).await;
    let urgent = broker.enqueue(new_job("a", "").priority(-2)).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 3);
    let mut worker = broker.worker("b").window(1).await;
    for expected in [urgent, first, between, last] {
        let job = worker.next().await;
        assert_eq!(job.id, expected);
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn a_job_whose_key_another_job_holds_is_not_moved_and_the_reason_is_given() {
    let broker = TestBroker::start().await;
    let mine = broker.enqueue("a").key("k").await;
    let theirs = broker.enqueue("b").key("k").delay(HOUR).await;
    let bulk = moved(&broker, to("a", "b")).await;
    assert_eq!((bulk.done_count, bulk.skipped_count, bulk.failed_count), (0, 1, 0));
    assert_eq!(bulk.problem, format!("job {mine} was not moved: job {theirs} holds its key in b"));
    broker.cancel(&[theirs]).await;
    assert_eq!(moved(&broker, to("a", "b")).await.done_count, 1);

    let mut worker = broker.worker("c").window(1).await;
    let runs = broker.enqueue("c").key("k").await;
    let job = worker.next().await;
    let next = broker.enqueue("c").key("k").replace().await;
    let bulk = moved(&broker, to("c", "d")).await;
    assert_eq!((bulk.done_count, bulk.skipped_count), (0, 1));
    assert_eq!(bulk.problem, format!("job {next} was not moved: it waits for job {runs}, which holds its key"));
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    assert_eq!(worker.next().await.id, next);
}

#[tokio::test]
async fn moved_jobs_free_their_slots_in_the_old_type_and_need_slots_in_the_new_type() {
    let broker = TestBroker::start().await;
    let one = || TaskTypeSettings { key_max_running: 1, ..Default::default() };
    broker.set("a", one()).await;
    broker.set("b", one()).await;
    let slot = broker.enqueue("a").limit_key("l").await;
    let waits = broker.enqueue("a").limit_key("l").await;
    broker.until_state(waits, JobState::Waiting).await;
    let ready = BulkSpec { state: JobState::Ready as i32, ..to("a", "b") };
    // The moved job frees its slot for the waiting job of its limit key. If that job becomes ready before the operation ends,
    // the same operation moves it too.
    let first = moved(&broker, ready).await.done_count;
    let second = moved(&broker, to("a", "b")).await.done_count;
    assert!(first >= 1 && first + second == 2, "{first} and {second}");
    // In the new type, the limit key decides which of the two jobs runs.
    broker.until_state(slot, JobState::Ready).await;
    broker.until_state(waits, JobState::Waiting).await;
    let mut worker = broker.worker("b").window(5).await;
    let job = worker.next().await;
    assert_eq!(job.id, slot);
    worker.ack(&job).await;
    assert_eq!(worker.next().await.id, waits);
}

#[tokio::test]
async fn an_invalid_move_and_the_undo_of_a_move_are_refused() {
    let broker = TestBroker::start().await;
    broker.enqueue("a").await;
    let leased = BulkSpec { state: JobState::Leased as i32, ..to("a", "b") };
    let foreign = BulkSpec { to_task_type: "b".into(), ..spec(BulkOperation::Cancel, "a") };
    for (field, spec) in [
        ("spec.to_task_type", to("a", "a")),
        ("spec.to_task_type", to("a", "")),
        ("spec.to_task_type", to("a", "'; DROP TABLE howdah.ready; --")),
        ("spec.to_task_type", foreign),
        ("spec.state", leased),
    ] {
        let request = StartBulkRequest { spec: Some(spec), ..Default::default() };
        let refused = broker.bulks().start_bulk(request).await.map(drop).unwrap_err();
        assert_eq!((refused.code(), Refusal::from(refused).field.as_str()), (Code::InvalidArgument, field));
    }
    let id = moved(&broker, to("a", "b")).await.id;
    let undo = BulkSpec { operation: BulkOperation::Undo as i32, undo_bulk_id: id, ..BulkSpec::default() };
    let refused = broker.bulks().preview_bulk(PreviewBulkRequest { spec: Some(undo) }).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("move jobs of b back to a"), "{refused}");
}

#[tokio::test]
async fn a_move_needs_the_operate_scope_of_both_types_and_the_audit_names_both() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue_all(vec!["a"; 600]).await;
    let spec = || BulkSpec { max_jobs_per_second: 1, ..to("a", "b") };
    for scope in ["operate:a", "operate:b"] {
        let half = guarded.caller(scope, &[scope, "read:*"]).await;
        let preview = half.bulks().preview_bulk(PreviewBulkRequest { spec: Some(spec()) }).await.map(drop);
        let start = StartBulkRequest { spec: Some(spec()), ..Default::default() };
        for refused in [preview, half.bulks().start_bulk(start).await.map(drop)] {
            assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied, "{scope}");
        }
    }
    let ann = guarded.caller("ann", &["operate:a", "operate:b", "read:a"]).await;
    let bulk = ann.start_bulk(spec()).await;
    let half = guarded.caller("half", &["operate:a", "read:a"]).await;
    let cancel = half.bulks().cancel_bulk(v1::CancelBulkRequest { id: bulk.id }).await.map(drop);
    assert_eq!(cancel.unwrap_err().code(), Code::NotFound);
    assert_eq!(half.bulk(bulk.id).await.id, bulk.id, "the caller may read the operation");
    guarded.admin.hurry(bulk.id).await;
    assert_eq!(guarded.admin.ended_bulk(bulk.id).await.done_count, 600);
    assert_eq!(guarded.admin.audited().await, 600);
    let both = "SELECT count(*) FROM howdah.audit WHERE method = 'StartBulk' AND reason LIKE 'bulk operation %'
                AND principal = 'ann' AND NOT types @> '{a,b}'";
    assert_eq!(guarded.admin.count(both).await, 0);
}

#[tokio::test]
async fn a_broker_that_is_killed_between_two_transactions_has_moved_no_job_twice() {
    let database = database().await;
    let mut killed = Program::serve(&database, &faults::QUICK).await;
    killed.enqueue_all(vec!["k"; 600]).await;
    let bulk = killed.start_bulk(BulkSpec { max_jobs_per_second: 1, ..to("k", "m") }).await;
    killed.begun_bulk(bulk.id).await;
    killed.kill().await;
    let other = TestBroker::on_with(&database, faults::short_lease).await;
    other.hurry(bulk.id).await;
    let ended = other.ended_bulk(bulk.id).await;
    assert_eq!((ended.done_count, ended.failed_count, other.audited().await), (600, 0, 600));
    assert_eq!(of_type(&other, "m").await.lines().count(), 600);
}
