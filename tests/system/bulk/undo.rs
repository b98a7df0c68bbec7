//! Tests the bulk operation undo: it restores each job that a bulk cancel or discard ended, once, or skips the job with
//! a reason.

use std::fmt::Write as _;

use howdah_proto::v1::{NewJob, SettleStatus, TaskTypeSettings};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tonic::Code;

use super::*;
use crate::access::Guarded;

/// Query that returns all stored data of unfinished and dead jobs, their dependencies and their keys. A running job is shown as
/// if it had been released. Jobs with a limit key are shown as waiting, because slots are assigned anew.
const UNFINISHED: &str = "
    SELECT concat_ws(E'\\n', (SELECT string_agg(j::text, E'\\n' ORDER BY id) FROM (
        SELECT id, CASE WHEN options ? 'limit_key' THEN 'waiting' ELSE 'ready' END, rank, created, timeout_ms, last_token, NULL::timestamptz, attempt, max_attempts, priority, key, headers, options,
               failures, howdah.payload_of(id, payload, options) FROM howdah.ready
        UNION ALL SELECT id, CASE WHEN options ? 'limit_key' THEN 'waiting' ELSE 'ready' END, rank, created, timeout_ms, last_token, NULL, attempt - 1, max_attempts, priority, key, headers, options,
               failures, howdah.payload_of(id, payload, options) FROM howdah.leased
        UNION ALL SELECT id, 'scheduled', rank, created, timeout_ms, last_token, run_at, attempt, max_attempts, priority, key, headers, options,
               failures, howdah.payload_of(id, payload, options) FROM howdah.scheduled
        UNION ALL SELECT id, 'waiting', rank, created, timeout_ms, last_token, NULL, attempt, max_attempts, priority, key, headers, options,
               failures, howdah.payload_of(id, payload, options) FROM howdah.waiting
        UNION ALL SELECT id, 'dead', rank, created, timeout_ms, last_token, died, attempt, max_attempts, priority, key, headers, options,
               failures, howdah.payload_of(id, payload, options) FROM howdah.dead) j),
        (SELECT string_agg(d::text, E'\\n' ORDER BY d.job_id, d.after_id)
         FROM howdah.dependency d JOIN howdah.waiting w ON w.id = d.job_id),
        (SELECT string_agg(k::text, E'\\n' ORDER BY key) FROM howdah.job_key k))";

async fn unfinished(broker: &Service) -> String {
    broker.database.connect().await.query_one(UNFINISHED, &[]).await.expect("jobs").get(0)
}

/// Returns the lines that occur in only one of the two texts.
fn difference(before: &str, after: &str) -> String {
    let mut text = String::new();
    for (sign, a, b) in [('-', before, after), ('+', after, before)] {
        let of_b: std::collections::HashSet<&str> = b.lines().collect();
        for line in a.lines().filter(|line| !of_b.contains(line)).take(20) {
            let _ = writeln!(text, "{sign} {:.400}", line);
        }
    }
    text
}

pub(super) fn undo(id: i64) -> BulkSpec {
    BulkSpec { operation: BulkOperation::Undo as i32, undo_bulk_id: id, ..BulkSpec::default() }
}

async fn refused(broker: &Service, spec: BulkSpec) -> tonic::Status {
    let preview = broker.bulks().preview_bulk(PreviewBulkRequest { spec: Some(spec.clone()) }).await.map(drop);
    let start = broker.bulks().start_bulk(StartBulkRequest { spec: Some(spec), ..Default::default() }).await.map(drop);
    let (preview, start) = (preview.unwrap_err(), start.unwrap_err());
    assert_eq!((preview.code(), preview.message()), (start.code(), start.message()));
    start
}

/// Cancels all jobs of a type and waits for the end of the bulk operation.
async fn cancelled(broker: &Service, task_type: &str) -> Bulk {
    let bulk = broker.start_bulk(spec(BulkOperation::Cancel, task_type)).await;
    broker.ended_bulk(bulk.id).await
}

async fn undone(broker: &Service, id: i64) -> Bulk {
    let bulk = broker.start_bulk(undo(id)).await;
    broker.ended_bulk(bulk.id).await
}

/// Creates a job with random options. Some jobs depend on earlier jobs.
fn any_job(random: &mut StdRng, n: usize, ids: &[i64]) -> NewJob {
    let size = if random.random_ratio(1, 8) { 3_000 } else { random.random_range(0..40) };
    let mut job =
        new_job("u", vec![n as u8; size]).priority(random.random_range(-2..3)).max_attempts(random.random_range(1..5));
    if random.random_ratio(1, 3) {
        job = job.header("n", &n.to_string());
    }
    if random.random_ratio(1, 5) {
        job = job.delay(HOUR + secs(n as u64));
    }
    if random.random_ratio(1, 5) {
        job = job.key(&format!("k{n}"));
    }
    if random.random_ratio(1, 6) {
        job = job.limit_key(&format!("l{}", n % 3));
    }
    if random.random_ratio(1, 6) {
        job = job.expire_after(HOUR * 3);
    }
    if random.random_ratio(1, 6) {
        job = job.timeout(secs(60));
    }
    if !ids.is_empty() && random.random_ratio(1, 3) {
        let any: Vec<i64> = (0..2).map(|_| ids[random.random_range(0..ids.len())]).collect();
        job = job.after(if any[0] == any[1] { &any[..1] } else { &any });
    }
    job
}

/// Creates jobs in all states, including failed, running and dead jobs.
async fn any_jobs(broker: &Service, seed: u64) -> Worker {
    let mut random = StdRng::seed_from_u64(seed);
    let settings = TaskTypeSettings { key_max_running: 1, ..Default::default() };
    broker.set("u", settings).await;
    let mut worker = broker.worker("u").window(12).await;
    let mut ids: Vec<i64> = Vec::new();
    for n in 0..60 {
        ids.push(broker.enqueue(any_job(&mut random, n, &ids)).await);
    }
    for (n, job) in worker.take(12).await.into_iter().enumerate() {
        match n % 4 {
            0 => drop(worker.nack(&job, "later").retry_after(HOUR).status().await),
            1 => drop(worker.nack(&job, "never").no_retry().status().await),
            2 => drop(worker.ack(&job).status().await),
            _ => {}
        }
    }
    // Three jobs are still running. With a window of one job, the worker gets no more, so the next 1,200 jobs stay ready.
    worker.window("u", 1).await;
    let more: Vec<_> = (0..1_200).map(|n| new_job("u", vec![7; n % 9])).collect();
    broker.enqueue_all(more).await;
    worker
}

#[tokio::test]
async fn random_jobs_in_all_states_are_after_cancel_and_undo_what_they_were() {
    for seed in 0..3 {
        let broker = TestBroker::start().await;
        let _worker = any_jobs(&broker, seed).await;
        let settled = "SELECT count(*) = 0 FROM howdah.limit_state WHERE check_at <= now()";
        broker.until("limits that are checked", settled).await;
        // Pauses the type, so that no job starts during the test.
        broker.set("u", TaskTypeSettings { key_max_running: 1, paused: true, ..Default::default() }).await;
        let states = "SELECT count(DISTINCT state) FROM howdah.job WHERE state IN ('ready', 'leased', 'scheduled', 'waiting', 'dead')";
        assert_eq!(broker.count(states).await, 5, "seed {seed}");
        let before = unfinished(&broker).await;
        let all = broker.count("SELECT count(*) FROM howdah.job WHERE state::text IN ('ready', 'leased', 'scheduled', 'waiting', 'dead')").await;
        let bulk = cancelled(&broker, "u").await;
        assert_eq!((bulk.done_count, bulk.failed_count, bulk.skipped_count), (all, 0, 0), "seed {seed}");
        assert_eq!(unfinished(&broker).await, "");
        let preview = broker.preview(undo(bulk.id)).await;
        assert_eq!((preview.selected_count, preview.states_count), (all, None));
        assert!(preview.examples.iter().all(|job| job.state() == JobState::Cancelled && job.payload.is_empty()));
        let ended = undone(&broker, bulk.id).await;
        assert_eq!((ended.done_count, ended.skipped_count, &*ended.problem), (all, 0, ""), "seed {seed}");
        let after = unfinished(&broker).await;
        assert!(after == before, "seed {seed}:\n{}", difference(&before, &after));
        assert_eq!(broker.count("SELECT count(*) FROM howdah.bulk_change WHERE undone IS NULL").await, 0);
        let doubled = "SELECT count(*) FROM (SELECT id FROM howdah.job GROUP BY id HAVING count(*) > 1) d";
        assert_eq!(broker.count(doubled).await, 0);
        assert_eq!(broker.preview(undo(bulk.id)).await.selected_count, 0);
        let again = StartBulkRequest { spec: Some(undo(bulk.id)), ..Default::default() };
        let no = with_timeout("an answer", broker.bulks().start_bulk(again)).await.unwrap_err();
        assert!(no.code() == Code::FailedPrecondition && no.message().starts_with("nothing is left to undo"), "{no}");
    }
}

#[tokio::test]
async fn jobs_that_come_back_run_at_once_with_the_attempt_that_was_cut_short() {
    let (first, second) = TestBroker::pair().await;
    let mut worker = first.worker("w").window(1).await;
    let id = first.enqueue("w").await;
    assert_eq!((worker.next().await.id, first.job(id).await.attempt), (id, 1));
    let bulk = cancelled(&first, "w").await;
    worker.cancelled().await;
    // The second broker restores the job and notifies the first broker, which delivers it.
    undone(&second, bulk.id).await;
    let again = worker.next().await;
    assert_eq!((again.id, again.attempt), (id, 1));
    assert_eq!(worker.ack(&again).status().await, SettleStatus::Ok);
    first.until_state(id, JobState::Succeeded).await;
    assert_eq!(first.wait(id).await.state(), JobState::Succeeded);
}

#[tokio::test]
async fn the_same_request_finds_its_undo_also_when_nothing_is_left_to_undo() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let bulk = cancelled(&broker, "t").await;
    let start = async |key: &str| {
        let request = StartBulkRequest { spec: Some(undo(bulk.id)), request_key: key.into() };
        with_timeout("an answer", broker.bulks().start_bulk(request))
            .await
            .map(|answer| answer.into_inner().bulk.expect("one").id)
    };
    let id = start("a").await.expect("started");
    broker.ended_bulk(id).await;
    assert_eq!(start("a").await.expect("found"), id);
    assert_eq!(start("b").await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.bulk").await, 2);
}

#[tokio::test]
async fn discarded_jobs_are_dead_again_with_their_errors() {
    let broker = TestBroker::start().await;
    let ids = dead(&broker, "d", &["a", "b"]).await;
    let before = unfinished(&broker).await;
    let bulk = broker.start_bulk(spec(BulkOperation::Discard, "d")).await;
    assert_eq!(broker.ended_bulk(bulk.id).await.done_count, 2);
    assert_eq!(undone(&broker, bulk.id).await.done_count, 2);
    assert_eq!(unfinished(&broker).await, before);
    assert_eq!(broker.job(ids[1]).await.failures[0].error, "b");
    assert_eq!(broker.retry(&ids).await, ids);
}

#[tokio::test]
async fn the_undo_of_a_running_operation_or_of_an_undo_is_refused_with_the_reason() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(vec!["t"; 600]).await;
    let running = broker.start_bulk(slow(BulkOperation::Cancel, "t")).await.id;
    broker.begun_bulk(running).await;
    let no = refused(&broker, undo(running)).await;
    assert_eq!(no.code(), Code::FailedPrecondition);
    assert!(no.message().contains("is running; wait until it has ended, or cancel it"), "{no}");
    broker.pause_bulk(running).await;
    assert_eq!(refused(&broker, undo(running)).await.code(), Code::FailedPrecondition);
    broker.cancel_bulk(running).await;
    let undo_id = undone(&broker, running).await.id;
    let no = refused(&broker, undo(undo_id)).await;
    assert_eq!(no.code(), Code::FailedPrecondition);
    assert!(no.message().contains("is of the kind undo; only cancel and discard"), "{no}");
    let other = broker.start_bulk(BulkSpec { priority: Some(3), ..spec(BulkOperation::Reprioritize, "t") }).await.id;
    broker.ended_bulk(other).await;
    assert_eq!(refused(&broker, undo(other)).await.code(), Code::FailedPrecondition);
    assert_eq!(refused(&broker, undo(i64::MAX)).await.code(), Code::NotFound);
    for (field, spec) in [
        ("spec.undo_bulk_id", undo(0)),
        ("spec.undo_bulk_id", undo(-7)),
        ("spec.undo_bulk_id", BulkSpec { undo_bulk_id: running, ..spec(BulkOperation::Cancel, "t") }),
        ("spec.task_type", BulkSpec { task_type: "u".into(), ..undo(running) }),
        ("spec.state", BulkSpec { state: JobState::Ready as i32, ..undo(running) }),
        ("spec.error_group", BulkSpec { error_group: "x".into(), ..undo(running) }),
        ("spec.priority", BulkSpec { priority: Some(1), ..undo(running) }),
    ] {
        assert_eq!(Refusal::from(refused(&broker, spec).await).field, field);
    }
}

#[tokio::test]
async fn a_job_whose_key_another_holds_is_skipped_until_the_key_is_free() {
    let broker = TestBroker::start().await;
    let (keyed, plain) = (broker.enqueue("k").key("k").await, broker.enqueue("k").await);
    let bulk = cancelled(&broker, "k").await;
    let holder = broker.enqueue("k").key("k").delay(HOUR).await;
    let ended = undone(&broker, bulk.id).await;
    assert_eq!((ended.done_count, ended.skipped_count, ended.failed_count), (1, 1, 0));
    assert_eq!(ended.problem, format!("job {keyed} was not put back: job {holder} holds its key"));
    assert_eq!((broker.state(keyed).await, broker.state(plain).await), (JobState::Cancelled, JobState::Ready));
    broker.cancel(&[holder]).await;
    let ended = undone(&broker, bulk.id).await;
    assert_eq!((ended.selected_count, ended.done_count, &*ended.problem), (1, 1, ""));
    assert_eq!(broker.enqueue("k").key("k").outcome().await.id, keyed, "the restored job does not hold its key");
}

#[tokio::test]
async fn the_next_job_of_a_key_comes_back_behind_its_holder() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("n").window(1).await;
    let runs = broker.enqueue("n").key("k").await;
    let job = worker.next().await;
    let next = broker.enqueue("n").key("k").replace().await;
    assert_ne!(runs, next);
    // Cancels only the waiting job; the running job keeps the key.
    let waiting = BulkSpec { state: JobState::Waiting as i32, ..spec(BulkOperation::Cancel, "n") };
    let bulk = broker.start_bulk(waiting).await;
    broker.ended_bulk(bulk.id).await;
    let before = broker.count("SELECT count(*) FROM howdah.job_key WHERE next_id IS NULL").await;
    assert_eq!((before, undone(&broker, bulk.id).await.done_count), (1, 1));
    assert_eq!(broker.state(next).await, JobState::Waiting);
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    assert_eq!(worker.next().await.id, next);
}

#[tokio::test]
async fn a_dependent_of_a_job_that_cannot_be_restored_is_skipped() {
    let broker = TestBroker::start().await;
    let parent = broker.enqueue("a").key("k").await;
    let child = broker.enqueue("a").after(&[parent]).await;
    let free = broker.enqueue("other").delay(HOUR).await;
    let ends = broker.enqueue("a").after(&[free]).await;
    let bulk = cancelled(&broker, "a").await;
    assert_eq!(bulk.done_count, 3);
    broker.enqueue("a").key("k").delay(HOUR).await;
    let mut worker = broker.worker("other").window(1).await;
    broker.sql(&format!("UPDATE howdah.scheduled SET run_at = now() WHERE id = {free}")).await;
    let job = worker.next().await;
    assert_eq!(worker.ack(&job).status().await, SettleStatus::Ok);
    let ended = undone(&broker, bulk.id).await;
    assert_eq!((ended.done_count, ended.skipped_count), (1, 2), "{}", ended.problem);
    assert_eq!(broker.state(ends).await, JobState::Ready, "the parent of the restored job has succeeded");
    for id in [parent, child] {
        assert_eq!(broker.state(id).await, JobState::Cancelled);
    }
    assert!(ended.problem.starts_with("job "), "{}", ended.problem);
}

#[tokio::test]
async fn jobs_that_are_late_or_whose_history_or_payload_is_gone_are_skipped() {
    let broker = TestBroker::start().await;
    let late = broker.enqueue("s").expire_after(HOUR).await;
    let forgotten = broker.enqueue("s").await;
    let large = broker.enqueue(new_job("s", vec![1; 5_000])).await;
    let whole = broker.enqueue(new_job("s", vec![1; 5_000])).await;
    for (spoil, id, reason) in [
        (
            "UPDATE howdah.history SET options = '{\"expire_at_us\": 5}' WHERE id = ",
            late,
            "time by which it had to start",
        ),
        ("DELETE FROM howdah.history WHERE id = ", forgotten, "history has been dropped"),
        ("DELETE FROM howdah.payload WHERE id = ", large, "payload has been dropped"),
    ] {
        let bulk = cancelled(&broker, "s").await;
        broker.sql(&format!("{spoil}{id}")).await;
        let ended = undone(&broker, bulk.id).await;
        assert_eq!((ended.skipped_count, ended.failed_count), (1, 0));
        assert!(
            ended.problem.starts_with(&format!("job {id} ")) && ended.problem.contains(reason),
            "{}",
            ended.problem
        );
    }
    assert_eq!(broker.state(whole).await, JobState::Ready);
}

#[tokio::test]
async fn a_broker_killed_in_the_middle_of_an_undo_loses_no_job_and_doubles_none() {
    let database = database().await;
    let quick = ["--set", "broker_lease=2s", "--set", "renew_interval=500ms"];
    let mut killed = Program::serve(&database, &quick).await;
    killed.enqueue_all(vec!["k"; 600]).await;
    let before = unfinished(&killed).await;
    let bulk = cancelled(&killed, "k").await;
    let slowly = BulkSpec { max_jobs_per_second: 1, ..undo(bulk.id) };
    let undoing = killed.start_bulk(slowly).await;
    killed.begun_bulk(undoing.id).await;
    killed.kill().await;
    let other = TestBroker::on_with(&database, |config| {
        (config.renew_interval, config.broker_lease) = (millis(200), secs(1));
    })
    .await;
    other.hurry(undoing.id).await;
    let ended = other.ended_bulk(undoing.id).await;
    assert_eq!((ended.done_count, ended.skipped_count, ended.failed_count), (600, 0, 0));
    let after = unfinished(&other).await;
    assert!(after == before, "{}", difference(&before, &after));
}

#[tokio::test]
async fn an_undo_needs_the_right_on_the_type_and_is_audited() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue_all(["mine", "theirs"]).await;
    let (mine, theirs) = (cancelled(&guarded.admin, "mine").await.id, cancelled(&guarded.admin, "theirs").await.id);
    let ann = guarded.caller("ann", &["operate:mine", "read:mine"]).await;
    assert_eq!(refused(&ann, undo(theirs)).await.code(), Code::NotFound, "a foreign bulk operation must look missing");
    let bob = guarded.caller("bob", &["read:mine"]).await;
    assert_eq!(refused(&bob, undo(mine)).await.code(), Code::PermissionDenied);
    let ended = undone(&ann, mine).await;
    assert_eq!((ended.done_count, &*ended.spec.expect("a spec").task_type), (1, "mine"));
    let audited = format!(
        "SELECT count(*) FROM howdah.audit WHERE principal = 'ann' AND method = 'StartBulk' AND count = 1 AND types = '{{mine}}'
         AND reason = 'bulk operation {} (undo of {mine})'",
        ended.id
    );
    assert_eq!(guarded.admin.count(&audited).await, 1);
}

#[tokio::test]
async fn jobs_whose_journal_partition_was_dropped_are_not_undone() {
    let broker = TestBroker::start_with(|config| config.history_days = 3_650).await;
    broker.enqueue_all(["j", "j"]).await;
    let bulk = cancelled(&broker, "j").await;
    broker
        .sql(
            "SELECT howdah.make_day_partition('bulk_change', 'changed', (now() AT TIME ZONE 'UTC')::date - 30);
             UPDATE howdah.bulk_change SET changed = changed - interval '30 days' WHERE job_id = (SELECT min(job_id) FROM howdah.bulk_change)",
        )
        .await;
    let drop = "SELECT howdah.drop_bulk_change_partitions((now() AT TIME ZONE 'UTC')::date - 8)::bigint";
    assert_eq!(broker.database.count_unless_locked(drop).await, 1);
    assert_eq!(broker.preview(undo(bulk.id)).await.selected_count, 1);
    assert_eq!(undone(&broker, bulk.id).await.done_count, 1);
}
