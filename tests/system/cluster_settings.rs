//! Tests cluster settings: limits that apply at every broker, to every way of enqueueing, and to SQL functions.

use std::{future::IntoFuture as _, process::Stdio};

use howdah_core::job;
use howdah_proto::v1::{
    ClusterSettings, GetSettingsRequest, GetSettingsResponse, JobState, Outcome, Settle, work_request::Message,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::{http_producer::curl, support::*};

const MIB: usize = 1 << 20;

/// Returns the lowest permitted value of each setting, so that small inputs exceed it.
fn strict() -> ClusterSettings {
    ClusterSettings {
        payload_bytes: 1 << 10,
        headers: 8,
        header_bytes: 1 << 10,
        key_bytes: 64,
        batch: 1_000,
        max_delay: Some(wire(HOUR)),
        max_timeout: Some(wire(MINUTE)),
        task_types: 100,
        dead_days: 1,
    }
}

fn payload_of(bytes: usize) -> ClusterSettings {
    ClusterSettings { payload_bytes: bytes as i64, ..ClusterSettings::default() }
}

async fn settings_of(broker: &TestBroker) -> GetSettingsResponse {
    with_timeout("an answer", broker.settings().get_settings(GetSettingsRequest {}))
        .await
        .expect("settings")
        .into_inner()
}

/// Returns the error message of a failing statement.
async fn sql_refusal(broker: &TestBroker, call: &str) -> String {
    let client = broker.database.connect().await;
    let error = client.batch_execute(&format!("SELECT howdah.{call}")).await.expect_err(call);
    let error = error.as_db_error().expect("an error of Postgres");
    assert_eq!(error.code().code(), "22023", "{call}: {error}");
    error.message().to_owned()
}

#[tokio::test]
async fn limits_set_at_one_broker_hold_at_another_and_in_sql() {
    let (a, b) = TestBroker::pair().await;
    a.set_cluster(strict()).await;
    a.settings_reach(&b).await;
    let many = |count: usize| (0..count).fold(new_job("t", ""), |job, i| job.header(&i.to_string(), ""));
    for (field, job) in [
        ("payload", new_job("t", [0; 1_025])),
        ("headers", many(9)),
        ("headers", new_job("t", "").header("h", &"x".repeat(1_024))),
        ("key", new_job("t", "").key(&"k".repeat(65))),
        ("limit_key", new_job("t", "").limit_key(&"k".repeat(65))),
        ("delay", new_job("t", "").delay(secs(3_601))),
        ("timeout", new_job("t", "").timeout(secs(61))),
    ] {
        b.enqueue(job).refused().await.names(&format!("jobs[0].{field}"));
    }
    b.enqueue("t").request_key(&"k".repeat(65)).refused().await.names("request_key");
    b.enqueue_all(vec!["t"; 1_001]).refused().await.names("jobs");
    for (call, message) in [
        ("enqueue('t', repeat('x', 1025))", "payload has 1025 bytes; at most 1024 are allowed"),
        ("enqueue_many('t', ARRAY[repeat('x', 1025)])", "payloads[0] has 1025 bytes; at most 1024 are allowed"),
        (
            "enqueue('t', headers => (SELECT jsonb_object_agg(i, '') FROM generate_series(1, 9) i))",
            "headers has 9 entries of 9 bytes together; at most 8 and 1024 are allowed",
        ),
        ("enqueue('t', key => repeat('k', 65))", "key has 65 bytes; at most 64 are allowed"),
        ("enqueue('t', request_key => repeat('k', 65))", "request_key has 65 bytes; at most 64 are allowed"),
        ("enqueue('t', fair_key => repeat('k', 65))", "fair_key has 65 bytes; at most 64 are allowed"),
        ("enqueue('t', delay => '61 min')", "delay is 01:01:00; 00:00:00 to 01:00:00 is allowed"),
        ("enqueue('t', expire_after => '61 min')", "expire_after is 01:01:00; 00:00:00.001 to 01:00:00 is allowed"),
        ("enqueue('t', timeout => '61 s')", "timeout is 00:01:01; 00:00:00.001 to 00:01:00 is allowed"),
        ("extend(1, 1, '61 s')", "duration is 00:01:01; 00:00:00.001 to 00:01:00 is allowed"),
        ("complete(1, 1, repeat('x', 1025))", "result has 1025 bytes; at most 1024 are allowed"),
        (
            "enqueue_batch((SELECT jsonb_agg('{\"task_type\": \"t\"}'::jsonb) FROM generate_series(1, 1001)))",
            "jobs is not an array of 1 to 1000 objects",
        ),
    ] {
        assert_eq!(sql_refusal(&a, call).await, message);
    }
    assert!(
        sql_refusal(&a, "enqueue('t', run_at => now() + interval '3 h')")
            .await
            .ends_with("1970 to 01:00:00 ahead is allowed")
    );
    assert_eq!(a.count("SELECT count(*) FROM howdah.job").await, 0);
    // Values exactly at the limits are accepted.
    b.enqueue(new_job("t", [0; 1_024]).key(&"k".repeat(64)).delay(HOUR).timeout(MINUTE)).await;
    a.sql("SELECT howdah.enqueue('t', repeat('x', 1024), key => repeat('s', 64), delay => '1 h', timeout => '1 min')")
        .await;
}

#[tokio::test]
async fn a_payload_limit_that_was_raised_holds_over_grpc_http_and_sql_and_for_results() {
    let broker = TestBroker::start_with(|config| config.http_enqueue = true).await;
    let call = |bytes: usize| format!("enqueue('t', repeat('x', {bytes}))");
    broker.enqueue(new_job("t", vec![0; MIB + 1])).refused().await.names("jobs[0].payload");
    assert_eq!(curl(&broker, "/v1/jobs/t", &[], &vec![0; MIB + 1]).await.0, 400);
    sql_refusal(&broker, &call(MIB + 1)).await;
    broker.set_cluster(payload_of(2 * MIB)).await;
    broker.enqueue(new_job("t", vec![0; 2 * MIB])).await;
    let (status, answer) = curl(&broker, "/v1/jobs/t", &[], &vec![0; 2 * MIB]).await;
    assert_eq!(status, 200, "{answer}");
    broker.sql(&format!("SELECT howdah.{}", call(2 * MIB))).await;
    broker.enqueue(new_job("t", vec![0; 2 * MIB + 1])).refused().await.names("jobs[0].payload");
    assert_eq!(curl(&broker, "/v1/jobs/t", &[], &vec![0; 2 * MIB + 1]).await.0, 400);
    sql_refusal(&broker, &call(2 * MIB + 1)).await;
    let mut worker = broker.worker("t").await;
    assert_eq!(worker.welcome.limits.expect("limits").max_payload_bytes, 2 * MIB as i64);
    for _ in 0..3 {
        let job = worker.next().await;
        assert_eq!(job.payload.len(), 2 * MIB);
        worker.ack(&job).result(vec![0; 2 * MIB]).await;
    }
}

#[tokio::test]
async fn a_value_out_of_bounds_is_refused_by_its_name_and_changes_nothing() {
    let broker = TestBroker::start().await;
    let before = settings_of(&broker).await;
    assert_eq!(before.settings, before.defaults);
    for (field, settings) in [
        ("payload_bytes", payload_of(1_023)),
        ("payload_bytes", payload_of(1_001 * MIB)),
        ("headers", ClusterSettings { headers: 7, ..strict() }),
        ("header_bytes", ClusterSettings { header_bytes: -1, ..strict() }),
        ("key_bytes", ClusterSettings { key_bytes: 2_001, ..strict() }),
        ("batch", ClusterSettings { batch: 999, ..strict() }),
        ("max_delay", ClusterSettings { max_delay: Some(wire(millis(999))), ..strict() }),
        ("max_timeout", ClusterSettings { max_timeout: Some(wire(3_651 * 24 * HOUR)), ..strict() }),
    ] {
        broker.set_cluster(settings).refused().await.names(&format!("settings.{field}"));
    }
    broker.set_cluster(ClusterSettings::default()).refused().await.names("settings");
    broker.set_cluster(strict()).only(&["batch", "size"]).refused().await.names("update_mask.paths[1]");
    assert_eq!(settings_of(&broker).await, before);
}

#[tokio::test]
async fn concurrent_changes_do_not_overwrite_each_other_and_a_reset_changes_only_named_settings() {
    let (a, b) = TestBroker::pair().await;
    let batch = ClusterSettings { batch: 2_000, ..ClusterSettings::default() };
    tokio::join!(a.set_cluster(payload_of(2 * MIB)).into_future(), b.set_cluster(batch).into_future());
    let settings = settings_of(&a).await.settings.expect("settings");
    assert_eq!((settings.payload_bytes, settings.batch), (2 * MIB as i64, 2_000));
    let mixed = ClusterSettings { headers: 9, key_bytes: 100, ..ClusterSettings::default() };
    let settings = b.set_cluster(mixed).only(&["batch", "headers"]).await;
    assert_eq!((settings.payload_bytes, settings.batch), (2 * MIB as i64, 10_000));
    assert_eq!((settings.headers, settings.key_bytes), (9, 200));
}

#[tokio::test]
async fn limits_of_the_cluster_survive_a_restart_and_hold_from_the_first_call_on() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    broker.set_cluster(strict()).await;
    broker.stop().await;
    let broker = TestBroker::on(&database).await;
    broker.enqueue(new_job("t", [0; 1_025])).refused().await.names("jobs[0].payload");
    assert_eq!(settings_of(&broker).await.settings, Some(strict()));
}

#[tokio::test]
async fn the_batch_limit_in_the_welcome_applies_until_the_stream_ends() {
    let broker = TestBroker::start().await;
    let outcomes = || (1..=1_001).map(|id| Outcome { id, ..Outcome::default() }).collect();
    let mut before = broker.worker("t").await;
    broker.set_cluster(ClusterSettings { batch: 1_000, ..ClusterSettings::default() }).await;
    before.send(Message::Settle(Settle { outcomes: outcomes() })).await;
    assert_eq!(before.settled().await.id, 1);
    let mut after = broker.worker("t").await;
    assert_eq!(after.welcome.limits.expect("limits").max_settle_outcomes, 1_000);
    after.send(Message::Settle(Settle { outcomes: outcomes() })).await;
    let refused = Refusal::from(after.message().await.expect_err("the end of the stream"));
    assert_eq!(refused.field, "outcomes", "{refused}");
}

#[tokio::test]
async fn a_job_that_a_broker_cannot_send_waits_for_another_broker() {
    let broker = TestBroker::start().await;
    broker.set_cluster(payload_of(2 * MIB)).await;
    let small = broker.another_with(|config| config.limits.message_bytes = MIB).await;
    let mut at_small = small.worker("t").await;
    let large = broker.enqueue(new_job("t", vec![0; 2 * MIB])).await;
    // The large job exceeds the message limit of the small broker, which skips it and delivers a later job.
    let after = broker.enqueue("t").await;
    assert_eq!(at_small.next().await.id, after);
    assert_eq!(small.pull("t").up_to(5).await.len(), 0);
    assert_eq!(broker.state(large).await, JobState::Ready);
    let mut worker = broker.worker("t").await;
    assert_eq!(worker.next().await.id, large);
}

#[tokio::test]
async fn a_broker_whose_limits_are_too_small_for_the_cluster_warns_when_it_starts() {
    let database = database().await;
    let mut command = tokio::process::Command::new(howdah());
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--set", "limits.message_bytes=1MiB"]);
    command.args(["--database-url", &database.url, "--log", "warn"]);
    let mut broker = command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn().expect("serve");
    let mut lines = BufReader::new(broker.stderr.take().expect("stderr")).lines();
    let warning = "limits.message_bytes of this broker (1 MiB) is too small for payload_bytes (1 MiB)";
    with_timeout("the warning", async {
        while !lines.next_line().await.expect("read").expect("the broker runs").contains(warning) {}
    })
    .await;
}

/// Brokers name the bounds of settings in errors, and the database enforces the bounds, so both must have the same
/// numbers.
#[tokio::test]
async fn the_database_has_the_same_defaults_and_bounds_as_the_brokers() {
    let broker = TestBroker::start().await;
    let answer = settings_of(&broker).await;
    assert_eq!(answer.settings, answer.defaults);
    let columns = |s: job::ClusterSettings| {
        let interval = |time: std::time::Duration| (time.as_secs(), " * interval '1 s'");
        let number = |number: usize| (number as u64, "");
        let values = [
            number(s.payload_bytes),
            number(s.headers),
            number(s.header_bytes),
            number(s.key_bytes),
            number(s.batch),
            interval(s.max_delay),
            interval(s.max_timeout),
            number(s.task_types),
            number(s.dead_days),
        ];
        job::ClusterSettings::NAMES.into_iter().zip(values)
    };
    let client = broker.database.connect().await;
    let set = async |name: &str, value: u64, unit: &str| {
        let answer = client.batch_execute(&format!("UPDATE howdah.settings SET {name} = {value}{unit}")).await;
        answer.map_err(|error| error.code().map(|code| code.code().to_owned()).unwrap_or_default())
    };
    let violated = Err("23514".to_owned());
    for (name, (lowest, unit)) in columns(job::ClusterSettings::LOWEST) {
        assert_eq!(set(name, lowest, unit).await, Ok(()), "{name}");
        assert_eq!(set(name, lowest - 1, unit).await, violated, "{name}");
    }
    for (name, (highest, unit)) in columns(job::ClusterSettings::HIGHEST) {
        assert_eq!(set(name, highest, unit).await, Ok(()), "{name}");
        assert_eq!(set(name, highest + 1, unit).await, violated, "{name}");
    }
    let second = client.batch_execute("INSERT INTO howdah.settings DEFAULT VALUES").await.expect_err("one row");
    assert_eq!(second.code().map(|code| code.code()), Some("23505"));
}

#[tokio::test]
async fn the_command_line_shows_sets_and_resets_settings_of_the_cluster() {
    let broker = TestBroker::start().await;
    let server = ["--server", &broker.grpc];
    let ok = async |args: &[&str]| {
        let (status, out, err) = run(&[args, &server].concat(), b"").await;
        assert!(status.success(), "{args:?}: {err}");
        out
    };
    let out = ok(&["settings", "set", "payload_bytes=2MiB", "max_delay=30d"]).await;
    assert_eq!(out, "payload_bytes  2 MiB\nmax_delay      30days\n");
    let shown = ok(&["settings"]).await;
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
    let words = |name: &str| line(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert!(words("payload_bytes").starts_with("payload_bytes 2 MiB (changed) 1 MiB 1 KiB to 1000 MiB "), "{shown}");
    assert!(words("max_delay").starts_with("max_delay 30days (changed) 3650days 1s to 36500days "), "{shown}");
    assert!(words("batch").starts_with("batch 10000 10000 1000 to 100000 "), "{shown}");
    let json: Value = serde_json::from_str(&ok(&["settings", "--json"]).await).expect("JSON");
    let [settings, defaults] = [&json["settings"], &json["defaults"]];
    let bytes = |count: usize| json!(count.to_string());
    assert_eq!((&settings["payload_bytes"], &defaults["payload_bytes"]), (&bytes(2 * MIB), &bytes(MIB)));
    assert_eq!(settings["max_delay"], json!("2592000s"));
    assert_eq!(ok(&["settings", "reset", "payload_bytes"]).await, "payload_bytes  1 MiB\n");
    let json: Value = serde_json::from_str(&ok(&["settings", "set", "--json", "batch=5000"]).await).expect("JSON");
    assert_eq!((&json["batch"], &json["payload_bytes"]), (&json!(5_000), &bytes(MIB)));
    for (args, status, expected) in [
        (["set", "payload_bytes=1"], 65, "settings.payload_bytes is 1; 1024 to 1048576000 is allowed"),
        (["set", "payload=1"], 2, "\"payload\" is not a setting of the cluster; use one of payload_bytes, headers"),
        (["reset", "payload"], 2, "payload_bytes"),
    ] {
        let (ended, _, err) = run(&[&["settings"][..], &args, &server].concat(), b"").await;
        assert!(ended.code() == Some(status) && err.contains(expected), "{args:?}: {ended} {err}");
    }
}

#[tokio::test]
async fn a_limit_of_the_cluster_in_the_configuration_of_a_broker_is_refused_with_what_to_do() {
    let (status, _, err) = run(&["config", "--set", "limits.payload_bytes=2MiB"], b"").await;
    assert_eq!(status.code(), Some(2));
    let expected = "limits.payload_bytes is a setting of the cluster now, not of a broker; set it with `howdah settings set payload_bytes=...`";
    assert!(err.contains(expected), "{err}");
}
