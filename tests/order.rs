//! Which job goes first: ageing, and priorities that change on the fly.

use howdah_proto::v1::{
    EnqueueJobsRequest, GetJobRequest, NewJob, ReprioritizeJobsRequest, ReprioritizeJobsResponse, SettleStatus,
    Subscribe, TaskTypeSettings, UpdateTaskTypeRequest, Window, new_job as start,
};
use howdah_server::{
    config::Config,
    job::JobState,
    store::{ClaimRequest, Store, WalkPosition, Want},
};
use tonic::Status;
use tonic_types::StatusExt as _;

use crate::{
    settings::until_read,
    support::{
        TestBroker, TestDatabase, Worker, ack, database, jobs_client, nack, new_job, run, soon, task_types_client,
        until,
    },
};

fn job(task_type: &str, payload: &str, priority: i32) -> NewJob {
    NewJob { priority, ..new_job(task_type, payload) }
}

async fn enqueue(broker: &TestBroker, jobs: Vec<NewJob>) -> Vec<i64> {
    let request = EnqueueJobsRequest { jobs, ..Default::default() };
    let answer = soon("an answer", jobs_client(&broker.grpc).await.enqueue_jobs(request)).await;
    answer.expect("enqueue").into_inner().jobs.iter().map(|j| j.id).collect()
}

/// Sets the step, in milliseconds; 0: none.
async fn set_step(broker: &TestBroker, task_type: &str, millis: u64) {
    let step = std::time::Duration::from_millis(millis);
    let priority_step = (millis > 0).then(|| step.try_into().unwrap());
    let settings = Some(TaskTypeSettings { priority_step, ..Default::default() });
    let update = UpdateTaskTypeRequest { task_type: task_type.into(), settings };
    soon("an answer", task_types_client(&broker.grpc).await.update_task_type(update)).await.expect("update");
}

async fn reprioritize(
    broker: &TestBroker,
    request: ReprioritizeJobsRequest,
) -> Result<ReprioritizeJobsResponse, Status> {
    let answer = soon("an answer", jobs_client(&broker.grpc).await.reprioritize_jobs(request)).await;
    answer.map(tonic::Response::into_inner)
}

fn ids(ids: &[i64], priority: i32) -> ReprioritizeJobsRequest {
    ReprioritizeJobsRequest { ids: ids.to_vec(), priority, ..Default::default() }
}

/// Time passes for jobs that are ready: they have been so for this many seconds longer.
async fn age(database: &TestDatabase, id: i64, seconds: i64) {
    let sql = format!(
        "UPDATE howdah.ready SET rank = rank - {seconds} * 1000000::bigint, created = created - {seconds} * interval '1 second' \
         WHERE id = {id}"
    );
    database.connect().await.batch_execute(&sql).await.expect("age");
}

/// The payloads of the next jobs, each acked before the next.
async fn next(worker: &mut Worker, count: usize) -> Vec<String> {
    let mut got = Vec::new();
    for _ in 0..count {
        let job = worker.job().await;
        got.push(String::from_utf8(job.payload.to_vec()).expect("text"));
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    }
    got
}

/// Every rank of a type is its priority times this step, and a time of the last day or the next.
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
async fn with_a_step_an_old_job_goes_before_a_new_one_of_higher_priority_and_without_one_it_does_not() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    set_step(&broker, "ages", 1_000).await;
    for task_type in ["ages", "strict"] {
        let old = enqueue(&broker, vec![job(task_type, "old, low", 10)]).await;
        age(&database, old[0], 20).await;
        enqueue(&broker, vec![job(task_type, "new, low", 10), job(task_type, "new, high", 0)]).await;
        let mut worker = Worker::connect(&broker.grpc, task_type, 1).await;
        let expected = match task_type {
            "ages" => ["old, low", "new, high", "new, low"],
            _ => ["new, high", "old, low", "new, low"],
        };
        assert_eq!(next(&mut worker, 3).await, expected);
    }
}

#[tokio::test]
async fn jobs_that_wait_follow_a_new_step_on_every_broker_whatever_state_they_are_in() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mut holder = Worker::connect(&a.grpc, "s", 1).await;
    let held = enqueue(&a, vec![job("s", "held", 20)]).await;
    let held = (held[0], holder.job().await);
    let old = enqueue(&a, vec![job("s", "old, low", 10)]).await;
    age(&database, old[0], 3600).await;
    let delay = Some(start::Start::Delay(prost_types::Duration { seconds: 600, nanos: 0 }));
    enqueue(&b, vec![job("s", "new, high", -10), NewJob { start: delay, ..job("s", "later", 7) }]).await;
    set_step(&a, "s", 60_000).await;
    ranks_follow(&database, "s", 60_000_000).await;
    // What comes or comes back has the new step too.
    until_read(&database, &a, &b).await;
    enqueue(&b, vec![job("s", "newest", 10)]).await;
    holder.settle(vec![nack(&held.1, "again")]).await;
    assert_eq!(holder.settled().await.status(), SettleStatus::Ok);
    ranks_follow(&database, "s", 60_000_000).await;
    holder.vanish();
    until(&database, "the end of the holder's lease", "SELECT count(*) = 4 FROM howdah.ready").await;
    ranks_follow(&database, "s", 60_000_000).await;
    // Back to strict.
    set_step(&b, "s", 0).await;
    ranks_follow(&database, "s", 1 << 45).await;
    assert_eq!(
        database
            .count("SELECT count(*) FROM howdah.job j JOIN howdah.ready r USING (id) WHERE r.options IS NOT NULL")
            .await,
        0
    );
    set_step(&a, "s", 60_000).await;
    ranks_follow(&database, "s", 60_000_000).await;
    let mut worker = Worker::connect(&b.grpc, "s", 1).await;
    assert_eq!(next(&mut worker, 4).await, ["old, low", "new, high", "newest", "held"]);
}

#[tokio::test]
async fn a_new_step_that_was_broken_off_in_the_middle_is_finished_by_the_next_broker() {
    let database = database().await;
    let client = database.connect().await;
    let broker = TestBroker::start(&database).await;
    let jobs = (0..5_000).map(|n| job("m", "", n % 7 - 3)).collect();
    enqueue(&broker, jobs).await;
    broker.stop().await;
    let change = "UPDATE howdah.settings SET version = version + 1;
                  UPDATE howdah.task_type SET priority_step_us = 5000000, step_changed = now() WHERE name = 'm'";
    client.batch_execute(change).await.expect("change");
    let type_id: i32 = client.query_one("SELECT id FROM howdah.task_type WHERE name = 'm'", &[]).await.unwrap().get(0);
    // Somebody has begun: twice the same part, since nobody noted the place.
    let store = Store::new(&Config::new(&database.url)).expect("store");
    let first = WalkPosition { state: JobState::Ready, rank: i64::MIN, id: i64::MIN };
    assert_eq!(store.rerank(type_id, None, first, 1_000).await.expect("step").moved, 1_000);
    store.rerank(type_id, None, first, 1_000).await.expect("step");
    let broker = TestBroker::start(&database).await;
    ranks_follow(&database, "m", 5_000_000).await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready").await, 5_000);
    // When all that may have been under way has ended, it is done.
    client.batch_execute("UPDATE howdah.task_type SET step_changed = now() - interval '1 hour'").await.expect("age");
    set_step(&broker, "other", 1_000).await;
    until(&database, "the end of it", "SELECT step_changed IS NULL FROM howdah.task_type WHERE name = 'm'").await;
}

#[tokio::test]
async fn a_job_of_a_broker_that_is_gone_comes_back_with_the_step_of_now() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    enqueue(&broker, vec![job("g", "", 9), job("g", "", 0), job("g", "", -9)]).await;
    broker.stop().await;
    let store = Store::new(&Config::new(&database.url)).expect("store");
    let gone = store.register_broker("gone", std::time::Duration::from_secs(60)).await.expect("register");
    let want = Want { type_id: 1, jobs: 10, floor: i64::MIN, largest: i64::MAX };
    let claim = ClaimRequest {
        wants: vec![want],
        broker_id: Some(gone),
        bytes: 1 << 20,
        total: 10,
        lease_ms: None,
        token_key: 1,
        limited: std::collections::HashSet::new(),
    };
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
async fn a_job_that_is_moved_forward_goes_next_on_every_broker_though_they_have_claimed_past_it() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let first: Vec<NewJob> = (0..6).map(|n| job("f", &format!("first {n}"), 0)).collect();
    enqueue(&a, first).await;
    let late = enqueue(&a, vec![job("f", "late 0", 100), job("f", "late 1", 101), job("f", "late 2", 102)]).await;
    let mut on_a = Worker::connect(&a.grpc, "f", 1).await;
    let windows = ["f", "said"].map(|t| Window { task_type: t.into(), jobs: 1, bytes: 0 }).to_vec();
    let mut on_b = Worker::subscribe(&b.grpc, Subscribe { windows, ..Default::default() }).await;
    // Both have a floor now, and each holds one.
    let (held_a, held_b) = (on_a.job().await, on_b.job().await);
    let answer = reprioritize(&a, ids(&late[1..], -100)).await.expect("reprioritize");
    assert_eq!((answer.reprioritized_ids, answer.job_count), (late[1..].to_vec(), 2));
    // The other broker has heard of it when it has heard of what was said later, or has looked itself.
    let said = enqueue(&a, vec![job("said", "", 0)]).await;
    let heard = on_b.job().await;
    assert_eq!((heard.id, on_b.ack(&heard).await.status()), (said[0], SettleStatus::Ok));
    on_b.settle(vec![ack(&held_b)]).await;
    let moved = on_b.job().await;
    assert_eq!(moved.id, late[1], "its time counts as before");
    on_a.settle(vec![ack(&held_a)]).await;
    assert_eq!(on_a.job().await.id, late[2]);
    let shown = soon("an answer", jobs_client(&b.grpc).await.get_job(GetJobRequest { id: late[2] })).await;
    assert_eq!(shown.expect("get").into_inner().job.expect("a job").priority, -100);
}

#[tokio::test]
async fn a_priority_changes_wherever_the_job_is_but_not_when_it_is_over() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set_step(&a, "aged", 2_000).await;
    for task_type in ["plain", "aged"] {
        let mut worker = Worker::connect(&a.grpc, task_type, 2).await;
        let two = enqueue(&a, vec![job(task_type, "done", 1), job(task_type, "held", 1)]).await;
        let (done, held) = (worker.job().await, worker.job().await);
        let (done, held) = if done.id == two[0] { (done, held) } else { (held, done) };
        worker.ack(&done).await;
        let delay = Some(start::Start::Delay(prost_types::Duration { seconds: 600, nanos: 0 }));
        let scheduled = enqueue(&a, vec![NewJob { start: delay, ..job(task_type, "scheduled", 1) }]).await;
        let waiting = scheduled[0] + 1_000_000;
        let put = format!(
            "INSERT INTO howdah.waiting (id, rank, created, type_id, attempt, max_attempts, priority, options, payload)
             SELECT {waiting}, rank, created, type_id, attempt, max_attempts, priority, options, '' FROM howdah.scheduled
             WHERE id = {}",
            scheduled[0]
        );
        database.connect().await.batch_execute(&put).await.expect("waiting");
        let all = [done.id, held.id, scheduled[0], waiting, i64::MAX, -1];
        let answer = reprioritize(&b, ids(&[&all[..], &all[..]].concat(), 5)).await.expect("reprioritize");
        assert_eq!(answer.reprioritized_ids, [held.id, scheduled[0], waiting]);
        let changed = format!("SELECT count(*) FROM howdah.job WHERE task_type = '{task_type}' AND priority = 5");
        assert_eq!(database.count(&changed).await, 3);
        worker.settle(vec![nack(&held, "again")]).await;
        let again = worker.job().await;
        assert_eq!((again.id, again.attempt), (held.id, 2));
        ranks_follow(&database, task_type, if task_type == "aged" { 2_000_000 } else { 1 << 45 }).await;
        worker.ack(&again).await;
    }
}

#[tokio::test]
async fn twenty_thousand_jobs_of_a_type_change_their_priority_and_those_of_others_do_not() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    for part in 0..2 {
        enqueue(&a, (0..10_000).map(|n| job("big", &format!("{}", part * 10_000 + n), 100 + n % 3)).collect()).await;
    }
    let delay = Some(start::Start::Delay(prost_types::Duration { seconds: 600, nanos: 0 }));
    enqueue(&a, (0..1_500).map(|_| NewJob { start: delay, ..job("big", "later", 9) }).collect()).await;
    enqueue(&a, vec![job("big", "first", 0), job("other", "x", 50), NewJob { start: delay, ..job("other", "x", 50) }])
        .await;
    let mut worker = Worker::connect(&b.grpc, "big", 1).await;
    let first = worker.job().await;
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
    assert_eq!(
        database.count("SELECT count(*) FROM howdah.job WHERE task_type = 'big' AND priority = -7").await,
        21_500
    );
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE task_type = 'other' AND priority = 50").await, 2);
    assert_eq!(reprioritize(&b, whole).await.expect("again").job_count, 0);
    ranks_follow(&database, "big", 1 << 45).await;
    // Now they go by their times, across what were three priorities.
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
async fn a_change_of_priority_out_of_bounds_is_refused_by_its_field_and_changes_nothing() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let one = enqueue(&broker, vec![job("x", "", 4)]).await;
    let both = ReprioritizeJobsRequest { task_type: "x".into(), ..ids(&one, 1) };
    let of_type = |priority| ReprioritizeJobsRequest { task_type: "x".into(), priority, ..Default::default() };
    let cases = [
        ("priority", ids(&one, 1001)),
        ("priority", of_type(-1001)),
        ("ids", ids(&[], 1)),
        ("ids", both),
        ("task_type", ReprioritizeJobsRequest { task_type: "a b".into(), ..of_type(1) }),
        ("page_token", ReprioritizeJobsRequest { page_token: "zz".into(), ..of_type(1) }),
        ("page_token", ReprioritizeJobsRequest { page_token: "00".into(), ..ids(&one, 1) }),
    ];
    for (field, request) in cases {
        let error = reprioritize(&broker, request).await.expect_err(field);
        let details = error.get_error_details();
        assert_eq!(details.bad_request().map(|bad| bad.field_violations[0].field.as_str()), Some(field), "{error}");
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready WHERE priority = 4").await, 1);
}

#[tokio::test]
async fn the_command_line_changes_priorities_of_jobs_and_of_a_type() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let jobs = enqueue(&broker, vec![job("c", "1", 0), job("c", "2", 0)]).await;
    let (one, two) = (jobs[0].to_string(), jobs[1].to_string());
    let server = ["--server", &broker.grpc];
    let (status, out, err) = run(&[&["reprioritize", "-5", &two][..], &server].concat(), b"").await;
    assert!(status.success() && out.trim() == two, "{err}");
    assert_eq!(database.count(&format!("SELECT priority::bigint FROM howdah.ready WHERE id = {two}")).await, -5);
    let (status, out, err) = run(&[&["reprioritize", "3", &one, "999999", "--json"][..], &server].concat(), b"").await;
    assert_eq!(status.code(), Some(1), "{err}");
    assert_eq!(out, format!("{{\"id\":{one},\"reprioritized\":true}}\n{{\"id\":999999,\"reprioritized\":false}}\n"));
    let (status, out, _) = run(&[&["reprioritize", "8", "--type", "c"][..], &server].concat(), b"").await;
    assert!(status.success() && out == "2\n", "{out}");
    let (status, _, err) = run(&[&["reprioritize", "1001", &one][..], &server].concat(), b"").await;
    assert_eq!(status.code(), Some(2), "{err}");
}
