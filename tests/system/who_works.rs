//! Tests the list of all brokers' workers that an operator sees, and the workers that hold jobs.

use std::time::Duration;

use howdah_proto::v1::{self, ListWorkersRequest, ListWorkersResponse, Subscribe, Window, WorkerState};
use serde_json::Value;

use crate::{access::Guarded, support::*};

/// Configures short intervals, so that brokers learn of each other's workers without delay.
fn prompt(config: &mut howdah_core::config::Config) {
    (config.renew_interval, config.session_grace) = (millis(20), millis(1));
}

async fn page(broker: &Service, request: ListWorkersRequest) -> ListWorkersResponse {
    with_timeout("workers", broker.workers().list_workers(request)).await.expect("workers").into_inner()
}

async fn listed(broker: &Service, task_type: &str) -> Vec<v1::Worker> {
    page(broker, ListWorkersRequest { task_type: task_type.into(), ..Default::default() }).await.workers
}

#[tokio::test]
async fn a_worker_is_listed_with_its_labels_windows_and_held_jobs() {
    let broker = TestBroker::start().await;
    let windows = ["w.b", "w.a"].map(|name| Window { task_type: name.into(), jobs: 3, bytes: 5_000 }).to_vec();
    let labels = [("host".to_owned(), "h 1".to_owned())].into();
    let subscribe = Subscribe { windows, labels, max_message_bytes: 70_000, ..Default::default() };
    let mut worker = Worker::subscribe(&broker.grpc, subscribe).await;
    // Waits for both windows, because with several stores a new type may be created after the `Welcome`.
    let has_both = |workers: &[v1::Worker]| workers.first().is_some_and(|worker| worker.windows.len() == 2);
    eventually("both windows", async || has_both(&listed(&broker, "w.a").await)).await;
    let found = &listed(&broker, "w.a").await[0];
    assert_eq!((found.state(), found.held_count, &found.quiet_for), (WorkerState::Idle, 0, &None));
    assert_eq!((found.labels["host"].as_str(), found.max_message_bytes), ("h 1", 70_000));
    assert!(found.user_agent.contains("tonic") && found.peer.starts_with("127.0.0.1:"), "{found:?}");
    assert!(found.connected_for.is_some() && !found.broker.is_empty(), "{found:?}");
    let names: Vec<_> = found.windows.iter().map(|w| (w.task_type.as_str(), w.window_jobs, w.window_bytes)).collect();
    assert_eq!(names, [("w.a", 3, 5_000), ("w.b", 3, 5_000)]);
    assert_eq!(found.worker_id.len(), 16);
    assert!(!worker.welcome.session_id.contains(&found.worker_id), "the session's id stays secret");

    broker.enqueue_all(["w.a", "w.a", "w.b"]).await;
    let jobs = worker.take(3).await;
    worker.ack(jobs.iter().find(|job| job.task_type == "w.a").expect("one")).await;
    let found = &listed(&broker, "w.a").await[0];
    assert_eq!((found.state(), found.held_count, found.settled_count), (WorkerState::Working, 2, 1));
    let counts: Vec<_> = found.windows.iter().map(|w| (w.held_count, w.settled_count)).collect();
    assert_eq!(counts, [(1, 1), (1, 0)]);
    assert!(found.quiet_for.is_some());
    assert!(listed(&broker, "w.c").await.is_empty());
}

#[tokio::test]
async fn a_worker_that_holds_jobs_and_does_nothing_is_stuck_until_it_reports() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("s").await;
    broker.enqueue("s").await;
    let job = worker.next().await;
    let state = async |stuck_after: Duration| {
        let request = ListWorkersRequest { stuck_after: Some(wire(stuck_after)), ..Default::default() };
        page(&broker, request).await.workers[0].state()
    };
    eventually("a stuck worker", async || state(secs(1)).await == WorkerState::Stuck).await;
    assert_eq!(state(HOUR).await, WorkerState::Working);
    let before = listed(&broker, "s").await[0].quiet_for.expect("quiet");
    eventually("a worker that has just extended", async || {
        worker.extend(&job, HOUR).await;
        let after = listed(&broker, "s").await[0].quiet_for.expect("quiet");
        (after.seconds, after.nanos) < (before.seconds, before.nanos)
    })
    .await;
    worker.drain().await;
    worker.drained().await;
    assert_eq!(state(HOUR).await, WorkerState::Draining);
    worker.vanish();
    eventually("a broken stream", async || state(HOUR).await == WorkerState::Disconnected).await;
}

#[tokio::test]
async fn every_broker_lists_the_workers_of_all_page_by_page() {
    let (a, b) = TestBroker::pair_with(prompt).await;
    let mut workers = Vec::new();
    for broker in [&a, &b, &a, &b, &a] {
        workers.push(broker.worker("p").await);
    }
    for broker in [&a, &b] {
        eventually("all workers", async || listed(broker, "p").await.len() == 5).await;
        let mut request = ListWorkersRequest { page_size: 2, ..Default::default() };
        let mut found = Vec::new();
        loop {
            let page = page(broker, request.clone()).await;
            assert!(page.workers.len() <= 2);
            found.extend(page.workers.into_iter().map(|worker| worker.worker_id));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 5);
    }
    // The list changes when a worker gets a job, and when workers leave.
    let id = a.enqueue("p").await;
    let held = async || {
        let workers = listed(&b, "p").await;
        workers.iter().map(|worker| worker.held_count).sum::<i32>() == 1
    };
    eventually("the worker with its job", held).await;
    assert_eq!(a.job(id).await.worker_id.len(), 16);
    workers.into_iter().for_each(Worker::vanish);
    eventually("no workers", async || listed(&b, "p").await.is_empty()).await;
    a.until("no stored workers", "SELECT NOT EXISTS (SELECT FROM howdah.worker)").await;
}

#[tokio::test]
async fn workers_of_an_expired_broker_are_not_listed_and_their_rows_are_deleted() {
    let broker =
        TestBroker::start_with(|config| (config.renew_interval, config.broker_lease) = (millis(200), secs(1))).await;
    broker
        .sql(
            "INSERT INTO howdah.broker (id, name, expires) VALUES (1000, 'gone', now() + interval '1 hour');
             INSERT INTO howdah.worker (broker_id, number, updated, task_types, job_ids, summary)
             VALUES (1000, 1, now(), '{g}', '{}', '{\"worker_id\": \"w\", \"is_connected\": true}')",
        )
        .await;
    let found = &listed(&broker, "g").await[0];
    assert_eq!((found.worker_id.as_str(), found.broker.as_str(), found.state()), ("w", "gone", WorkerState::Idle));
    broker.sql("UPDATE howdah.broker SET expires = now() WHERE id = 1000").await;
    assert!(listed(&broker, "g").await.is_empty());
    broker.until("no stored workers", "SELECT NOT EXISTS (SELECT FROM howdah.worker)").await;
}

#[tokio::test]
async fn rows_of_idle_workers_are_not_written_again() {
    let broker = TestBroker::start_with(prompt).await;
    let mut workers = Vec::new();
    for _ in 0..20 {
        workers.push(broker.worker("i").await);
    }
    broker.until("20 stored workers", "SELECT count(*) = 20 FROM howdah.worker").await;
    let written = "SELECT (extract(epoch FROM max(updated)) * 1000000)::bigint FROM howdah.worker";
    let before = broker.count(written).await;
    let renewed = "SELECT (extract(epoch FROM expires) * 1000000)::bigint FROM howdah.broker";
    let then = broker.count(renewed).await;
    broker.until("renewals of the broker's row", &format!("SELECT ({renewed}) > {then} + 200000")).await;
    assert_eq!(broker.count(written).await, before);
}

#[tokio::test]
async fn a_job_says_which_worker_of_which_broker_holds_it_at_any_broker() {
    let (a, b) = TestBroker::pair_with(|config| {
        prompt(config);
        config.name = format!("broker-{}", config.listen.port());
    })
    .await;
    let mut worker = a.worker("h").await;
    let id = a.enqueue("h").await;
    worker.next().await;
    let (here, there) = (a.job(id).await, b.job(id).await);
    assert_eq!((&here.broker, here.worker_id.len()), (&there.broker, 16));
    assert!(here.start_time.is_some() && !here.broker.is_empty());
    assert_eq!(here.worker_id, listed(&a, "h").await[0].worker_id);
    // The other broker knows the worker only after some seconds.
    eventually("the worker id at the other broker", async || b.job(id).await.worker_id == here.worker_id).await;

    let pulled = a.enqueue("pulled").await;
    a.pull("pulled").await;
    let job = a.job(pulled).await;
    assert_eq!((job.broker.as_str(), job.worker_id.as_str()), ("", ""));
    assert!(job.deadline.is_some());
}

#[tokio::test]
async fn a_caller_sees_only_workers_and_windows_of_types_that_it_may_read() {
    let guarded = Guarded::start().await;
    let both = guarded.caller("both", &["work:*"]).await;
    let (_one, _two) = (both.worker("mine.a").and("theirs").await, both.worker("theirs").await);
    let reader = guarded.caller("reader", &["read:mine.*"]).await;
    eventually("both workers", async || listed(&guarded.admin, "").await.len() == 2).await;
    let found = listed(&reader, "").await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].principal, "both");
    assert_eq!(found[0].windows.iter().map(|w| w.task_type.as_str()).collect::<Vec<_>>(), ["mine.a"]);
    let theirs = ListWorkersRequest { task_type: "theirs".into(), ..Default::default() };
    let refused = reader.workers().list_workers(theirs).await.expect_err("a refusal");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
}

#[tokio::test]
async fn a_request_out_of_bounds_names_its_field() {
    let broker = TestBroker::start().await;
    let refused = async |request: ListWorkersRequest| -> Refusal {
        broker.workers().list_workers(request).await.expect_err("a refusal").into()
    };
    refused(ListWorkersRequest { task_type: "a b".into(), ..Default::default() }).await.names("task_type");
    refused(ListWorkersRequest { page_size: -1, ..Default::default() }).await.names("page_size");
    refused(ListWorkersRequest { page_token: "x".into(), ..Default::default() }).await.names("page_token");
    refused(ListWorkersRequest { stuck_after: Some(wire(Duration::ZERO)), ..Default::default() })
        .await
        .names("stuck_after");
}

#[tokio::test]
async fn the_command_lists_workers_as_a_table_and_as_json() {
    let broker = TestBroker::start().await;
    let (_, _, err) = run(&["workers", "--server", &broker.grpc], b"").await;
    assert!(err.contains("no workers"), "{err}");
    let mut worker = broker.worker("c").window(4).await;
    let id = broker.enqueue("c").await;
    worker.next().await;
    let (status, out, errors) = run(&["workers", "c", "--server", &broker.grpc], b"").await;
    assert!(status.success() && out.contains("working") && out.contains("c 1/4"), "{out}{errors}");
    let (_, out, _) = run(&["workers", "--json", "--stuck-after", "1h", "--server", &broker.grpc], b"").await;
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!((&json["state"], &json["held_count"]), (&"WORKER_STATE_WORKING".into(), &1.into()));
    let (_, out, _) = run(&["job", &id.to_string(), "--server", &broker.grpc], b"").await;
    let worker_id = json["worker_id"].as_str().expect("a worker");
    assert!(out.contains(&format!("held by   worker {worker_id} at broker ")), "{out}");
}
