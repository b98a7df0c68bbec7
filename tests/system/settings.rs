//! Tests that settings of task types reach every broker within a second.

use howdah_proto::v1::TaskTypeSettings;
use serde_json::Value;

use crate::support::*;

fn paused() -> TaskTypeSettings {
    TaskTypeSettings { paused: true, ..TaskTypeSettings::default() }
}

#[tokio::test]
async fn no_broker_delivers_jobs_of_a_paused_type_until_the_type_is_resumed() {
    let (a, b) = TestBroker::pair().await;
    // Each broker also serves a type that the other broker does not serve, because either broker could claim a job of the
    // common type.
    let mut on_a = a.worker("p").and("qa").await;
    a.enqueue("p").await;
    let running = on_a.next().await;
    let mut on_b = b.worker("p").and("qb").await;
    a.set("p", paused()).await;
    a.settings_reach(&b).await;
    for (broker, worker, unpaused) in [(&a, &mut on_a, "qa"), (&b, &mut on_b, "qb")] {
        broker.enqueue_all(["p", "p"]).await;
        // The later job of a type that is not paused is delivered, and the earlier jobs of the paused type are not.
        broker.enqueue(unpaused).await;
        let other = worker.next().await;
        assert_eq!(other.task_type, unpaused);
        worker.ack(&other).await;
        assert_eq!(broker.pull("p").up_to(5).wait(secs(1)).await.len(), 0);
    }
    assert_eq!(a.count("SELECT count(*) FROM howdah.job WHERE task_type = 'p' AND state = 'ready'").await, 4);
    // Running jobs continue.
    on_a.ack(&running).await;
    b.set("p", TaskTypeSettings::default()).await;
    for _ in 0..4 {
        let (worker, job) = tokio::select! {
            job = on_a.next() => (&mut on_a, job),
            job = on_b.next() => (&mut on_b, job),
        };
        assert_eq!(job.task_type, "p");
        worker.ack(&job).sent().await;
    }
    a.until("five acks", "SELECT count(*) = 5 FROM howdah.job WHERE task_type = 'p' AND state = 'succeeded'").await;
}

#[tokio::test]
async fn a_waiting_pull_gets_its_job_when_the_paused_type_is_resumed() {
    let broker = TestBroker::start().await;
    broker.set("p", paused()).await;
    let id = broker.enqueue("p").await;
    let pulling = tokio::spawn(broker.pull("p").up_to(5).wait(MINUTE).into_future());
    broker.set("p", TaskTypeSettings::default()).await;
    assert_eq!(pulling.await.expect("no panic")[0].id, id);
}

#[tokio::test]
async fn the_timeout_of_a_type_applies_to_jobs_without_a_timeout() {
    let (a, b) = TestBroker::pair().await;
    // Sets a timeout that does not pass during the test.
    a.set("t", TaskTypeSettings { timeout: Some(wire(secs(3000))), ..Default::default() }).await;
    a.settings_reach(&b).await;
    b.enqueue_all([new_job("t", "none"), new_job("t", "own").timeout(secs(700))]).await;
    b.enqueue_all([new_job("t", "keyed").key("k"), new_job("u", "another type")]).await;
    let timeouts = |ms: &str| format!("SELECT count(*) FROM howdah.ready WHERE timeout_ms {ms}");
    assert_eq!(a.count(&timeouts("= 3000000")).await, 2);
    assert_eq!(a.count(&timeouts("= 700000")).await, 1);
    assert_eq!(a.count(&timeouts("IS NULL")).await, 1);
    // The timeout also applies to a job that is enqueued directly into `leased`.
    let mut worker = b.worker("t").await;
    for _ in 0..3 {
        let job = worker.next().await;
        worker.ack(&job).await;
    }
    b.enqueue("t").await;
    let job = worker.next().await;
    assert!(job.deadline.is_some());
    a.until("a deadline", "SELECT deadline = leased_at + interval '3000 seconds' FROM howdah.leased").await;
}

#[tokio::test]
async fn a_payload_larger_than_its_type_takes_is_refused_with_both_sizes_and_nothing_is_stored() {
    let (a, b) = TestBroker::pair().await;
    a.set("l", TaskTypeSettings { max_payload_bytes: 10, ..Default::default() }).await;
    a.settings_reach(&b).await;
    for broker in [&a, &b] {
        let refused = broker.enqueue_all([new_job("l", [0; 10]), new_job("l", [0; 11])]).refused().await;
        refused.names("jobs[1].payload");
        assert!(refused.message.contains("11 bytes") && refused.message.contains("at most 10"), "{refused}");
    }
    assert_eq!(a.count("SELECT count(*) FROM howdah.job").await, 0);
    a.enqueue_all([new_job("l", [0; 10]), new_job("other", [0; 11])]).await;
    let too_large = TaskTypeSettings { max_payload_bytes: (1 << 20) + 1, ..Default::default() };
    a.set("l", too_large).refused().await.names("settings.max_payload_bytes");
}

#[tokio::test]
async fn a_setting_out_of_bounds_is_refused_by_its_name_and_changes_nothing() {
    let broker = TestBroker::start().await;
    let nanos = |nanos| Some(prost_types::Duration { seconds: 0, nanos });
    let d = TaskTypeSettings::default;
    let cases = [
        ("priority_step", TaskTypeSettings { priority_step: nanos(999_999), ..d() }),
        ("priority_step", TaskTypeSettings { priority_step: Some(wire(secs(35_184_373))), ..d() }),
        ("timeout", TaskTypeSettings { timeout: Some(wire(secs(0))), ..d() }),
        ("timeout", TaskTypeSettings { timeout: Some(wire(secs(31 * 24 * 3600))), ..d() }),
        ("max_payload_bytes", TaskTypeSettings { max_payload_bytes: -1, ..d() }),
        ("max_backlog", TaskTypeSettings { max_backlog: 10_000_001, ..d() }),
        ("max_backlog", TaskTypeSettings { max_backlog: -1, ..d() }),
        ("history_days", TaskTypeSettings { history_days: 3651, ..d() }),
        ("dead_days", TaskTypeSettings { dead_days: 3651, ..d() }),
        ("history", TaskTypeSettings { history: 5, ..d() }),
    ];
    for (name, settings) in cases {
        broker.set("x", settings).refused().await.names(&format!("settings.{name}"));
    }
    assert_eq!(broker.count("SELECT count(*) FROM howdah.task_type").await, 0);
}

#[tokio::test]
async fn the_command_line_sets_shows_and_unsets_every_setting() {
    let broker = TestBroker::start().await;
    let server = ["--server", &broker.grpc];
    let set = "type set cli --max-attempts 3 --history without_empty --history-days 9 --priority-step 1m --timeout 30s \
               --paused true --max-payload-bytes 1000 --max-backlog 500";
    let set: Vec<&str> = set.split_whitespace().collect();
    let (status, _, err) = run(&[&set[..], &server].concat(), b"").await;
    assert!(status.success(), "{err}");
    let (_, shown, _) = run(&[&["type", "show", "cli"][..], &server].concat(), b"").await;
    for line in
        ["paused              true", "priority-step       1m", "retry-initial-delay -", "max-backlog         500"]
    {
        assert!(shown.lines().any(|shown| shown == line), "{line:?} in\n{shown}");
    }
    let (_, json, _) = run(&[&["type", "show", "cli", "--json"][..], &server].concat(), b"").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["history_days"], &json["priority_step"], &json["paused"]),
        (&9.into(), &"60s".into(), &true.into())
    );
    let (_, types, _) = run(&[&["types"][..], &server].concat(), b"").await;
    assert!(types.contains("timeout 30s, paused true, max-payload-bytes 1000"), "{types}");
    let unset = ["type", "set", "cli", "--unset", "paused", "--unset", "max-backlog", "--timeout", "5s"];
    let (_, left, err) = run(&[&unset[..], &server].concat(), b"").await;
    let expected = "max-attempts 3, history without_empty, history-days 9, priority-step 1m, timeout 5s, \
                    max-payload-bytes 1000\n";
    assert_eq!(left, expected, "{err}");
    let (status, _, _) = run(&[&["type", "set", "cli"][..], &server].concat(), b"").await;
    assert_eq!(status.code(), Some(2));
    let (status, _, err) = run(&[&["type", "show", "nobody"][..], &server].concat(), b"").await;
    assert!(!status.success() && err.contains("nobody"), "{err}");
}
