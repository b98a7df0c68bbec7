//! Tests the order of jobs: ageing, and priorities that change later.

use std::collections::HashSet;

use howdah_core::{
    config::Config,
    job::{JobState, PagePosition},
};
use howdah_engine::store::{ClaimRequest, Store, Want};
use howdah_proto::v1::{
    JobConditions, NewJob, ReprioritizeJobsRequest, ReprioritizeJobsResponse, Subscribe, TaskTypeSettings, Window,
};
use tonic::Status;

use crate::support::*;

fn job(task_type: &str, payload: &str, priority: i32) -> NewJob {
    new_job(task_type, payload).priority(priority)
}

/// Sets the task type's priority step (the waiting time that equals one priority level) in milliseconds; 0 means no
/// ageing.
async fn set_step(broker: &TestBroker, task_type: &str, step: u64) {
    let priority_step = (step > 0).then(|| wire(millis(step)));
    broker.set(task_type, TaskTypeSettings { priority_step, ..Default::default() }).await;
}

async fn reprioritize(
    broker: &TestBroker,
    request: ReprioritizeJobsRequest,
) -> Result<ReprioritizeJobsResponse, Status> {
    let answer = with_timeout("an answer", broker.jobs().reprioritize_jobs(request)).await;
    answer.map(tonic::Response::into_inner)
}

fn ids(ids: &[i64], priority: i32) -> ReprioritizeJobsRequest {
    ReprioritizeJobsRequest { ids: ids.to_vec(), priority, ..Default::default() }
}

/// Simulates that a job has been ready for this many seconds longer.
async fn age(database: &TestDatabase, id: i64, seconds: i64) {
    let sql = format!(
        "UPDATE howdah.ready SET rank = rank - {seconds} * 1000000::bigint, created = created - {seconds} * interval '1 second' \
         WHERE id = {id}"
    );
    database.connect().await.batch_execute(&sql).await.expect("age");
}

/// Runs the next jobs one after another, and returns their payloads.
async fn next(worker: &mut Worker, count: usize) -> Vec<String> {
    let mut got = Vec::new();
    for _ in 0..count {
        let job = worker.next().await;
        got.push(String::from_utf8(job.payload.to_vec()).expect("text"));
        worker.ack(&job).await;
    }
    got
}

/// Asserts that each rank is the priority times `step_us`, plus a time between yesterday and tomorrow.
async fn ranks_follow(database: &TestDatabase, task_type: &str, step_us: i64) {
    let sql = format!(
        "SELECT coalesce(bool_and(rank - priority * {step_us}::bigint BETWEEN
                    extract(epoch FROM now() - interval '1 day') * 1000000
                    AND extract(epoch FROM now() + interval '1 day') * 1000000), true)
         FROM (SELECT type_id, rank, priority FROM howdah.ready
               UNION ALL SELECT type_id, rank, priority FROM howdah.scheduled
               UNION ALL SELECT type_id, rank, priority FROM howdah.waiting) j
         JOIN howdah.task_type t ON t.id = j.type_id WHERE t.name = '{task_type}'"
    );
    until(database, "ranks that follow the step", &sql).await;
}

#[tokio::test]
async fn an_old_job_overtakes_a_new_one_of_higher_priority_only_with_a_priority_step() {
    let broker = TestBroker::start().await;
    set_step(&broker, "ages", 1_000).await;
    for task_type in ["ages", "strict"] {
        let old = broker.enqueue_all([job(task_type, "old, low", 10)]).await;
        age(&broker.database, old[0], 20).await;
        broker.enqueue_all([job(task_type, "new, low", 10), job(task_type, "new, high", 0)]).await;
        let mut worker = broker.worker(task_type).window(1).await;
        let expected = match task_type {
            "ages" => ["old, low", "new, high", "new, low"],
            _ => ["new, high", "old, low", "new, low"],
        };
        assert_eq!(next(&mut worker, 3).await, expected);
    }
}

#[tokio::test]
async fn a_new_priority_step_changes_the_ranks_of_unfinished_jobs_in_every_state() {
    let (a, b) = TestBroker::pair().await;
    let mut holder = a.worker("s").window(1).await;
    let held = a.enqueue_all([job("s", "held", 20)]).await;
    let held = (held[0], holder.next().await);
    let old = a.enqueue_all([job("s", "old, low", 10)]).await;
    age(&a.database, old[0], 3600).await;
    b.enqueue_all([job("s", "new, high", -10), job("s", "later", 7).delay(10 * MINUTE)]).await;
    set_step(&a, "s", 60_000).await;
    ranks_follow(&a.database, "s", 60_000_000).await;
    // Jobs that are enqueued, retried or released after the change also have ranks by the new step.
    a.settings_reach(&b).await;
    b.enqueue(job("s", "newest", 10)).await;
    holder.nack(&held.1, "again").at_once().await;
    ranks_follow(&a.database, "s", 60_000_000).await;
    holder.vanish();
    a.until("the end of the holder's lease", "SELECT count(*) = 4 FROM howdah.ready").await;
    ranks_follow(&a.database, "s", 60_000_000).await;
    // A step of 0 restores strict priorities.
    set_step(&b, "s", 0).await;
    ranks_follow(&a.database, "s", 1 << 45).await;
    assert_eq!(
        a.count("SELECT count(*) FROM howdah.job j JOIN howdah.ready r USING (id) WHERE r.options IS NOT NULL").await,
        0
    );
    set_step(&a, "s", 60_000).await;
    ranks_follow(&a.database, "s", 60_000_000).await;
    let mut worker = b.worker("s").window(1).await;
    assert_eq!(next(&mut worker, 4).await, ["old, low", "new, high", "newest", "held"]);
}

#[tokio::test]
async fn an_interrupted_change_of_the_priority_step_is_finished_by_the_next_broker() {
    let database = database().await;
    let client = database.connect().await;
    let broker = TestBroker::on(&database).await;
    broker.enqueue_all((0..5_000).map(|n| job("m", "", n % 7 - 3))).await;
    broker.stop().await;
    let change = "UPDATE howdah.settings SET version = version + 1;
                  UPDATE howdah.task_type SET priority_step_us = 5000000, step_changed = now() WHERE name = 'm'";
    client.batch_execute(change).await.expect("change");
    let type_id: i32 = client.query_one("SELECT id FROM howdah.task_type WHERE name = 'm'", &[]).await.unwrap().get(0);
    // Changes the ranks of the first 1,000 jobs twice, as if a broker had crashed before it saved its position.
    let store = Store::new(&Config::new(&database.url)).expect("store");
    let first = PagePosition::first(JobState::Ready);
    for _ in 0..2 {
        assert_eq!(store.rerank(type_id, first, 1_000).await.expect("step").missed, 0);
    }
    let broker = TestBroker::on(&database).await;
    ranks_follow(&database, "m", 5_000_000).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 5_000);
    // Makes the change an hour old: brokers repeat the scan until all operations that knew the old step have ended.
    client.batch_execute("UPDATE howdah.task_type SET step_changed = now() - interval '1 hour'").await.expect("age");
    set_step(&broker, "other", 1_000).await;
    until(
        &database,
        "the end of the change of the step",
        "SELECT step_changed IS NULL FROM howdah.task_type WHERE name = 'm'",
    )
    .await;
}

#[tokio::test]
async fn rescued_jobs_are_ranked_by_the_current_priority_step() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    broker.enqueue_all([job("g", "", 9), job("g", "", 0), job("g", "", -9)]).await;
    broker.stop().await;
    let store = Store::new(&Config::new(&database.url)).expect("store");
    let gone = store.register_broker("gone", std::time::Duration::from_secs(60)).await.expect("register");
    let want = Want { type_id: 1, jobs: 10, floor: i64::MIN, largest: i64::MAX };
    let claim = ClaimRequest { broker_id: Some(gone), ..ClaimRequest::new(vec![want], HashSet::new(), 10) };
    let claimed = store.claim(&claim).await.expect("claim").jobs;
    assert_eq!(claimed.len(), 3);
    assert!(claimed.iter().all(|job| (0..3_600_000_000).contains(&job.waited_us)), "{claimed:?}");
    let gone = "UPDATE howdah.task_type SET priority_step_us = 7000000; DELETE FROM howdah.broker";
    database.connect().await.batch_execute(gone).await.expect("gone");
    let again = store.register_broker("again", std::time::Duration::from_secs(60)).await.expect("register");
    let moved = store.rescue(10, again).await.expect("rescue");
    ranks_follow(&database, "g", 7_000_000).await;
    let lowest = database.count("SELECT min(rank) FROM howdah.ready").await;
    assert_eq!((moved[0].jobs, moved[0].lowest_rank), (3, lowest));
    let claimed = store.claim(&ClaimRequest { broker_id: Some(again), ..claim }).await.expect("claim").jobs;
    assert!(claimed.iter().all(|job| (0..3_600_000_000).contains(&job.waited_us)), "{claimed:?}");
}

#[tokio::test]
async fn a_reprioritized_job_goes_next_on_every_broker_although_claims_have_passed_its_rank() {
    let (a, b) = TestBroker::pair().await;
    let first: Vec<NewJob> = (0..6).map(|n| job("f", &format!("first {n}"), 0)).collect();
    a.enqueue_all(first).await;
    let late = a.enqueue_all([job("f", "late 0", 100), job("f", "late 1", 101), job("f", "late 2", 102)]).await;
    let mut on_a = a.worker("f").window(1).await;
    let windows = ["f", "marker"].map(|t| Window { task_type: t.into(), jobs: 1, bytes: 0 }).to_vec();
    let mut on_b = Worker::subscribe(&b.grpc, Subscribe { windows, ..Default::default() }).await;
    // Each worker holds a job, so both brokers have claimed once and skip lower ranks in their next claims.
    let (held_a, held_b) = (on_a.next().await, on_b.next().await);
    let answer = reprioritize(&a, ids(&late[1..], -100)).await.expect("reprioritize");
    assert_eq!((answer.reprioritized_ids, answer.job_count), (late[1..].to_vec(), 2));
    // Notifications arrive in order. When broker `b` delivers the job `marker`, it has read the notification of the new
    // priorities.
    let marker = a.enqueue_all([job("marker", "", 0)]).await;
    let delivered = on_b.next().await;
    assert_eq!(delivered.id, marker[0]);
    on_b.ack(&delivered).await;
    on_b.ack(&held_b).sent().await;
    let moved = on_b.next().await;
    assert_eq!(moved.id, late[1], "a reprioritized job keeps its time");
    on_a.ack(&held_a).sent().await;
    assert_eq!(on_a.next().await.id, late[2]);
    assert_eq!(b.job(late[2]).await.priority, -100);
}

#[tokio::test]
async fn a_priority_can_change_in_every_state_of_a_job_except_finished() {
    let (a, b) = TestBroker::pair().await;
    set_step(&a, "aged", 2_000).await;
    for task_type in ["plain", "aged"] {
        let mut worker = a.worker(task_type).window(2).await;
        let two = a.enqueue_all([job(task_type, "done", 1), job(task_type, "held", 1)]).await;
        let (done, held) = (worker.next().await, worker.next().await);
        let (done, held) = if done.id == two[0] { (done, held) } else { (held, done) };
        worker.ack(&done).await;
        let scheduled = a.enqueue(job(task_type, "scheduled", 1).delay(10 * MINUTE)).await;
        let waiting = scheduled + 1_000_000;
        let put = format!(
            "INSERT INTO howdah.waiting (id, rank, created, type_id, attempt, max_attempts, priority, options, payload)
             SELECT {waiting}, rank, created, type_id, attempt, max_attempts, priority, options, '' FROM howdah.scheduled
             WHERE id = {scheduled}"
        );
        a.sql(&put).await;
        let all = [done.id, held.id, scheduled, waiting, i64::MAX, -1];
        let answer = reprioritize(&b, ids(&[&all[..], &all[..]].concat(), 5)).await.expect("reprioritize");
        assert_eq!(answer.reprioritized_ids, [held.id, scheduled, waiting]);
        let changed = format!("SELECT count(*) FROM howdah.job WHERE task_type = '{task_type}' AND priority = 5");
        assert_eq!(a.count(&changed).await, 3);
        worker.nack(&held, "again").at_once().sent().await;
        let again = worker.next().await;
        assert_eq!((again.id, again.attempt), (held.id, 2));
        ranks_follow(&a.database, task_type, if task_type == "aged" { 2_000_000 } else { 1 << 45 }).await;
        worker.ack(&again).await;
    }
}

#[tokio::test]
async fn twenty_thousand_jobs_of_a_type_change_their_priority_and_those_of_others_do_not() {
    let (a, b) = TestBroker::pair().await;
    for part in 0..2 {
        a.enqueue_all((0..10_000).map(|n| job("big", &format!("{}", part * 10_000 + n), 100 + n % 3))).await;
    }
    a.enqueue_all((0..1_500).map(|_| job("big", "later", 9).delay(10 * MINUTE))).await;
    a.enqueue_all([job("big", "first", 0), job("other", "x", 50), job("other", "x", 50).delay(10 * MINUTE)]).await;
    let mut worker = b.worker("big").window(1).await;
    let first = worker.next().await;
    let whole = ReprioritizeJobsRequest { task_type: "big".into(), priority: -7, ..Default::default() };
    let (mut request, mut jobs) = (whole.clone(), 0);
    loop {
        let answer = reprioritize(&a, request.clone()).await.expect("reprioritize");
        jobs += answer.job_count;
        if answer.next_page_token.is_empty() {
            break;
        }
        request.page_token = answer.next_page_token;
    }
    assert_eq!(jobs, 21_500);
    assert_eq!(a.count("SELECT count(*) FROM howdah.job WHERE task_type = 'big' AND priority = -7").await, 21_500);
    assert_eq!(a.count("SELECT count(*) FROM howdah.job WHERE task_type = 'other' AND priority = 50").await, 2);
    assert_eq!(reprioritize(&b, whole).await.expect("again").job_count, 0);
    ranks_follow(&a.database, "big", 1 << 45).await;
    // All jobs now have the same priority, and run in the order of their creation, whatever priority they had before.
    worker.ack(&first).await;
    let got: Vec<i64> = next(&mut worker, 50).await.iter().map(|n| n.parse().expect("a number")).collect();
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!(got, sorted);
    assert_eq!(got[..3], [0, 1, 2]);
    let nobody = ReprioritizeJobsRequest { task_type: "nobody".into(), priority: 1, ..Default::default() };
    assert_eq!(reprioritize(&a, nobody).await.expect("an unknown type"), ReprioritizeJobsResponse::default());
}

#[tokio::test]
async fn jobs_of_a_type_that_meet_conditions_change_their_priority_and_others_do_not() {
    let broker = TestBroker::start().await;
    let jobs = |n: usize| {
        let job = job("t", "", n as i32 % 2).fair_key(if n < 6 { "acme" } else { "other" });
        if n.is_multiple_of(3) { job.delay(10 * MINUTE) } else { job }
    };
    let stored = broker.enqueue_all((0..12).map(jobs)).await;
    let conditions = Some(JobConditions { fair_key: "acme".into(), ..Default::default() });
    let request = ReprioritizeJobsRequest { task_type: "t".into(), priority: 1, conditions, ..Default::default() };
    assert_eq!(reprioritize(&broker, request).await.expect("reprioritize").job_count, 3, "three had the priority");
    for (n, id) in stored.iter().enumerate() {
        assert_eq!(broker.job(*id).await.priority, if n < 6 { 1 } else { n as i32 % 2 }, "{n}");
    }
    let server = ["--server", &broker.grpc];
    let words = ["reprioritize", "9", "--type", "t", "--fair-key", "other", "--attempts-at-most", "0"];
    let (status, out, err) = run(&[&words[..], &server].concat(), b"").await;
    assert!(status.success() && out == "6\n", "{out} {err}");
    let (status, _, err) = run(&[&["reprioritize", "9", "17", "--tag", "a"][..], &server].concat(), b"").await;
    assert_eq!(status.code(), Some(2), "{err}");
}

#[tokio::test]
async fn a_change_of_priority_out_of_bounds_is_refused_by_its_field_and_changes_nothing() {
    let broker = TestBroker::start().await;
    let one = [broker.enqueue(job("x", "", 4)).await];
    let both = ReprioritizeJobsRequest { task_type: "x".into(), ..ids(&one, 1) };
    let conditions = Some(JobConditions { tag: "t".into(), ..Default::default() });
    let of_type = |priority| ReprioritizeJobsRequest { task_type: "x".into(), priority, ..Default::default() };
    let cases = [
        ("priority", ids(&one, 1001)),
        ("priority", of_type(-1001)),
        ("ids", ids(&[], 1)),
        ("ids", both),
        ("conditions", ReprioritizeJobsRequest { conditions, ..ids(&one, 1) }),
        ("task_type", ReprioritizeJobsRequest { task_type: "a b".into(), ..of_type(1) }),
        ("page_token", ReprioritizeJobsRequest { page_token: "zz".into(), ..of_type(1) }),
        ("page_token", ReprioritizeJobsRequest { page_token: "00".into(), ..ids(&one, 1) }),
    ];
    for (field, request) in cases {
        Refusal::from(reprioritize(&broker, request).await.expect_err(field)).names(field);
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.ready WHERE priority = 4").await, 1);
}

#[tokio::test]
async fn the_command_line_changes_priorities_of_jobs_and_of_a_type() {
    let broker = TestBroker::start().await;
    let jobs = broker.enqueue_all([job("c", "1", 0), job("c", "2", 0)]).await;
    let (one, two) = (jobs[0].to_string(), jobs[1].to_string());
    let server = ["--server", &broker.grpc];
    let (status, out, err) = run(&[&["reprioritize", "-5", &two][..], &server].concat(), b"").await;
    assert!(status.success() && out.trim() == two, "{err}");
    assert_eq!(broker.count(&format!("SELECT priority::bigint FROM howdah.ready WHERE id = {two}")).await, -5);
    let (status, out, err) = run(&[&["reprioritize", "3", &one, "999999", "--json"][..], &server].concat(), b"").await;
    assert_eq!(status.code(), Some(1), "{err}");
    assert_eq!(out, format!("{{\"id\":{one},\"reprioritized\":true}}\n{{\"id\":999999,\"reprioritized\":false}}\n"));
    let (status, out, _) = run(&[&["reprioritize", "8", "--type", "c"][..], &server].concat(), b"").await;
    assert!(status.success() && out == "2\n", "{out}");
    let (status, _, err) = run(&[&["reprioritize", "1001", &one][..], &server].concat(), b"").await;
    assert_eq!(status.code(), Some(2), "{err}");
}
