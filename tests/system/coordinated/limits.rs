//! Tests limits: how many jobs of a type or a limit key run concurrently, and at which rate they start.

use std::collections::HashMap;

use howdah_proto::v1::{JobState, ListLimitKeysRequest, NewJob, Rate, TaskTypeSettings};

use crate::support::*;

fn keyed(key: &str) -> NewJob {
    new_job("work", key.to_owned()).limit_key(key)
}

#[tokio::test]
async fn no_more_jobs_of_a_key_run_at_once_than_allowed_on_two_brokers() {
    let (a, b) = TestBroker::pair().await;
    a.set("work", TaskTypeSettings { key_max_running: 2, ..Default::default() }).await;
    let mut left = a.worker("work").window(1).await;
    let mut right = b.worker("work").window(1).await;
    for _ in 0..6 {
        a.enqueue_all([keyed("x"), keyed("y")]).await;
    }
    let busiest = "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM (
        SELECT options FROM howdah.leased UNION ALL SELECT options FROM howdah.ready) j GROUP BY options ->> 'limit_key') c";
    let mut seen: HashMap<String, usize> = HashMap::new();
    for _ in 0..6 {
        let (one, two) = (left.next().await, right.next().await);
        for job in [&one, &two] {
            *seen.entry(String::from_utf8(job.payload.to_vec()).unwrap()).or_default() += 1;
        }
        assert!(a.count(busiest).await <= 2);
        tokio::join!(left.ack(&one), right.ack(&two));
    }
    assert_eq!(seen, HashMap::from([("x".into(), 6), ("y".into(), 6)]));
}

#[tokio::test]
async fn with_one_at_a_time_the_jobs_of_a_key_run_in_their_order() {
    let broker = TestBroker::start().await;
    broker.set("work", TaskTypeSettings { key_max_running: 1, ..Default::default() }).await;
    let jobs = broker.enqueue_all((0..20).map(|_| keyed("x"))).await;
    let mut worker = broker.worker("work").window(50).await;
    for id in jobs {
        let job = worker.next().await;
        assert_eq!((job.id, worker.buffered()), (id, 0));
        worker.ack(&job).await;
    }
}

#[tokio::test]
async fn a_job_that_backs_off_lets_others_pass_unless_the_order_is_strict() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("work").window(50).await;
    for strict in [false, true] {
        broker
            .set("work", TaskTypeSettings { key_max_running: 1, key_strict_order: strict, ..Default::default() })
            .await;
        let jobs = broker.enqueue_all([keyed("x"), keyed("x")]).await;
        let first = worker.next().await;
        worker.nack(&first, "later").retry_after(HOUR).await;
        if strict {
            broker
                .until(
                    "the check of the limits",
                    "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())",
                )
                .await;
            assert_eq!(broker.job(jobs[1]).await.state(), JobState::Waiting);
        } else {
            let second = worker.next().await;
            assert_eq!(second.id, jobs[1]);
            worker.ack(&second).await;
        }
        broker.until("a scheduled job", "UPDATE howdah.scheduled SET run_at = now() RETURNING true").await;
        let again = worker.next().await;
        assert_eq!((again.id, again.attempt), (jobs[0], 2));
        worker.ack(&again).await;
        if strict {
            let second = worker.next().await;
            assert_eq!(second.id, jobs[1]);
            worker.ack(&second).await;
        }
    }
}

#[tokio::test]
async fn a_limit_on_a_type_holds_over_all_brokers_and_ends_when_it_is_lifted() {
    let (a, b) = TestBroker::pair().await;
    a.set("work", TaskTypeSettings { max_running: 3, ..Default::default() }).await;
    a.settings_reach(&b).await;
    let mut left = a.worker("work").window(50).await;
    a.enqueue_all((0..10).map(|n| new_job("work", n.to_string()))).await;
    let held = left.take(3).await;
    let mut right = b.worker("work").window(50).await;
    assert_eq!(a.count("SELECT count(*) FROM howdah.leased").await, 3);
    left.settle(held.iter().map(ack).collect()).await;
    let next = tokio::select! { job = left.next() => job, job = right.next() => job };
    assert!(!held.iter().any(|job| job.id == next.id));
    assert!(a.count("SELECT count(*) FROM howdah.leased").await <= 3);
    a.set("work", TaskTypeSettings::default()).await;
    a.until("seven leases", "SELECT count(*) = 7 FROM howdah.leased").await;
}

#[tokio::test]
async fn a_rate_grants_a_burst_and_then_a_token_at_a_time() {
    let broker = TestBroker::start().await;
    let rate = Some(Rate { per_second: 0.001, burst: 4 });
    broker.set("work", TaskTypeSettings { rate, ..Default::default() }).await;
    broker.enqueue_all((0..10).map(|n| new_job("work", n.to_string()))).await;
    let mut worker = broker.worker("work").window(50).await;
    worker.take(4).await;
    let one_more = "UPDATE howdah.limit_state SET refilled = refilled - interval '1000 seconds' WHERE limit_key = '' RETURNING true";
    broker.until("a state of the rate limit", one_more).await;
    worker.take(1).await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.leased").await, 5);
}

#[tokio::test]
async fn a_key_has_its_own_rate_and_its_own_gap() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("work").window(50).await;
    broker
        .set("work", TaskTypeSettings { key_rate: Some(Rate { per_second: 0.001, burst: 2 }), ..Default::default() })
        .await;
    broker.enqueue_all((0..5).map(|_| keyed("x")).chain((0..2).map(|_| keyed("y")))).await;
    let first = worker.take(4).await;
    assert_eq!(first.iter().filter(|job| job.payload == "x").count(), 2);
    let moved = "UPDATE howdah.limit_state SET refilled = refilled - interval '1000 seconds', check_at = now()
        WHERE limit_key = 'x' RETURNING true";
    broker.until("a state of the rate limit of x", moved).await;
    worker.take(1).await;
    broker.set("work", TaskTypeSettings { key_min_gap: Some(wire(HOUR)), ..Default::default() }).await;
    broker.enqueue_all([keyed("z"), keyed("z")]).await;
    assert_eq!(worker.next().await.payload, "z");
    broker
        .until("the check of the limits", "SELECT NOT EXISTS (SELECT FROM howdah.limit_state WHERE check_at <= now())")
        .await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.waiting WHERE limit_key = 'z'").await, 1);
    // Moves the start of the first job with limit key z back by an hour, so that the minimum gap has passed.
    let hour = "WITH a AS (UPDATE howdah.leased SET leased_at = leased_at - interval '1 hour' WHERE options ->> 'limit_key' = 'z'),
        b AS (UPDATE howdah.limit_state SET check_at = now(), gap_from = gap_from - interval '1 hour' WHERE limit_key = 'z')
        SELECT true";
    broker.until("the changed start of z", hour).await;
    assert_eq!(worker.next().await.payload, "z");
}

#[tokio::test]
async fn a_database_clock_that_goes_back_stops_neither_a_rate_nor_a_gap() {
    let rate = Some(Rate { per_second: 5.0, burst: 1 });
    for settings in [
        TaskTypeSettings { rate, ..Default::default() },
        TaskTypeSettings { key_rate: rate, ..Default::default() },
        TaskTypeSettings { key_min_gap: Some(wire(millis(200))), ..Default::default() },
    ] {
        let broker = TestBroker::start().await;
        broker.set("work", settings).await;
        let mut worker = broker.worker("work").await;
        broker.enqueue(keyed("x")).await;
        let job = worker.next().await;
        worker.ack(&job).await;
        // Moves the stored times ahead by an hour, as if the database's clock had gone back by an hour.
        let ahead =
            "UPDATE howdah.limit_state SET refilled = refilled + interval '1 h', gap_from = gap_from + interval '1 h'";
        broker.sql(ahead).await;
        for _ in 0..3 {
            broker.enqueue(keyed("x")).await;
            let job = worker.next().await;
            worker.ack(&job).await;
        }
    }
}

#[tokio::test]
async fn a_key_is_paused_and_resumed() {
    let (a, b) = TestBroker::pair().await;
    let mut worker = b.worker("work").window(50).await;
    a.pause_key("work", "x").await;
    let jobs = a.enqueue_all([keyed("x"), keyed("y")]).await;
    let job = worker.next().await;
    assert_eq!(job.id, jobs[1]);
    let list = ListLimitKeysRequest { task_type: "work".into(), ..Default::default() };
    let keys = a.task_types().list_limit_keys(list).await.unwrap().into_inner().limit_keys;
    assert_eq!(keys.len(), 1);
    assert_eq!((keys[0].limit_key.as_str(), keys[0].waiting_count, keys[0].paused), ("x", 1, true));
    a.resume_key("work", "x").await;
    assert_eq!(worker.next().await.id, jobs[0]);
    // The broker that admitted the job counts it in its metrics after the worker may have received it, so the test polls.
    let admitted = async || [a.metrics().await, b.metrics().await].map(|all| all.contains("howdah_admitted_total 1\n"));
    eventually("the admitted job in the metrics of a broker", async || admitted().await != [false, false]).await;
    assert_ne!(admitted().await, [true, true], "both brokers counted the admitted job");
}

#[tokio::test]
async fn jobs_that_were_ready_before_a_limit_was_set_are_held_to_it() {
    let broker = TestBroker::start().await;
    broker.enqueue_all((0..5).map(|_| keyed("x"))).await;
    broker.set("work", TaskTypeSettings { key_max_running: 2, ..Default::default() }).await;
    broker.until("two ready jobs", "SELECT count(*) = 2 FROM howdah.ready").await;
    broker.set("work", TaskTypeSettings { key_max_running: 4, ..Default::default() }).await;
    broker.until("four ready jobs", "SELECT count(*) = 4 FROM howdah.ready").await;
}

#[tokio::test]
async fn a_broker_that_dies_frees_its_slots_with_its_leases() {
    let b = TestBroker::start().await;
    b.set("work", TaskTypeSettings { key_max_running: 1, max_running: 1, ..Default::default() }).await;
    let mut a = Program::serve(&b.database, &[]).await;
    let mut left = a.worker("work").window(5).await;
    let jobs = b.enqueue_all([keyed("x").max_attempts(1), keyed("x")]).await;
    assert_eq!(left.next().await.id, jobs[0]);
    a.kill().await;
    left.vanish();
    let died =
        "UPDATE howdah.broker SET expires = now() - interval '1 s' WHERE id = (SELECT broker_id FROM howdah.leased)";
    b.sql(died).await;
    let mut right = b.worker("work").window(5).await;
    assert_eq!(right.next().await.id, jobs[1]);
    assert_eq!(b.state(jobs[0]).await, JobState::Dead);
}

#[tokio::test]
async fn limits_out_of_bounds_are_refused_by_their_field() {
    let broker = TestBroker::start().await;
    let cases = [
        ("settings.max_running", TaskTypeSettings { max_running: 2_000_000, ..Default::default() }),
        ("settings.rate.per_second", TaskTypeSettings { rate: Some(Rate::default()), ..Default::default() }),
        (
            "settings.key_rate.per_second",
            TaskTypeSettings { key_rate: Some(Rate { per_second: f64::NAN, burst: 1 }), ..Default::default() },
        ),
        (
            "settings.rate.burst",
            TaskTypeSettings { rate: Some(Rate { per_second: 1.0, burst: 0 }), ..Default::default() },
        ),
        (
            "settings.rate.per_second",
            TaskTypeSettings { rate: Some(Rate { per_second: 0.0, burst: 1 }), ..Default::default() },
        ),
        (
            "settings.key_rate.burst",
            TaskTypeSettings { key_rate: Some(Rate { per_second: 1.0, burst: 0 }), ..Default::default() },
        ),
        ("settings.key_strict_order", TaskTypeSettings { key_strict_order: true, ..Default::default() }),
        ("settings.key_min_gap", TaskTypeSettings { key_min_gap: Some(wire(secs(0))), ..Default::default() }),
        ("settings.key_gap_from_end", TaskTypeSettings { key_gap_from_end: true, ..Default::default() }),
    ];
    for (field, settings) in cases {
        broker.set("work", settings).refused().await.names(field);
    }
}
