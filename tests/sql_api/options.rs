//! Every option by name, and what is refused.

use super::*;

#[tokio::test]
async fn each_option_by_name_is_stored_as_the_broker_would() {
    let database = database().await;
    let client = database.connect().await;
    let plain: i64 = one(&client, "SELECT howdah.enqueue('before')").await;
    let id: i64 = one(
        &client,
        &format!(
            "SELECT howdah.enqueue('a', '{{\"x\": 1}}'::jsonb, headers => '{{\"tenant\": \"b\"}}', priority => -5, key => 'k',
                run_at => now() + interval '1 h', max_attempts => 3, timeout => '30 s',
                retry_policy => '{{\"kind\": \"linear\", \"initial_delay\": \"5 s\", \"max_delay\": \"1 min\", \"jitter\": 0.5}}',
                fallback => 'f', key_policy => 'replace_if_newer', key_version => 7, key_hold => '1 day',
                expire_after => '2 h', limit_key => 'l', fair_key => 'fair', next_stages => '{{s1,s2}}', stage_payload => 'unchanged',
                after => '{{{plain}}}', on_dependency_failure => 'run', parent_id => {plain}, traceparent => 'tp', tracestate => 'ts',
                request_key => 'r')"
        ),
    )
    .await;
    let expected = "SELECT count(*) FROM howdah.waiting w JOIN howdah.task_type t ON t.id = w.type_id
        WHERE t.name = 'a' AND w.priority = -5 AND key = 'k' AND w.max_attempts = 3 AND w.timeout_ms = 30000
        AND headers = '{\"tenant\": \"b\"}' AND convert_from(payload, 'UTF8')::jsonb = '{\"x\": 1}'
        AND options -> 'retry' = '{\"kind\": \"linear\", \"initial_ms\": 5000, \"max_ms\": 60000, \"jitter\": 0.5}'
        AND options @> '{\"special\": true, \"limit_key\": \"l\", \"fair_key\": \"fair\", \"stage_payload\": \"unchanged\",
                         \"on_failure\": \"run\", \"traceparent\": \"tp\", \"tracestate\": \"ts\"}'
        AND (options ->> 'parent')::bigint = (SELECT min(id) FROM howdah.ready)
        AND (options ->> 'fallback')::integer = (SELECT id FROM howdah.task_type WHERE name = 'f')
        AND (options -> 'stages') = (SELECT jsonb_agg(id ORDER BY name) FROM howdah.task_type WHERE name IN ('s1', 's2'))
        AND (options ->> 'start_us')::bigint - extract(epoch FROM w.created) * 1000000 BETWEEN 3599000000 AND 3601000000
        AND (SELECT version = 7 AND held_until > now() + interval '23 h' FROM howdah.job_key WHERE job_id = w.id)
        AND EXISTS (SELECT FROM howdah.expiry e WHERE e.id = w.id)
        AND EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = w.id)";
    assert_eq!(database.count(expected).await, 1, "job {id}");
}

#[tokio::test]
async fn what_a_job_enqueues_has_it_as_parent() {
    let database = database().await;
    let client = database.connect().await;
    let parents = "SELECT string_agg(coalesce(options ->> 'parent', '-'), ' ' ORDER BY id) FROM howdah.ready";
    let enqueue = "SELECT howdah.enqueue('t'), howdah.enqueue('t', 'x', parent_id => 8), howdah.enqueue('t', parent_id => 0),
                          howdah.enqueue('t', 'x', headers => '{\"a\": \"b\"}');
                   SELECT howdah.enqueue_many('t', ARRAY['a']);
                   SELECT howdah.enqueue_many('[{\"task_type\": \"t\"}, {\"task_type\": \"t\", \"parent_id\": 9}]'::jsonb)";
    for (setting, expected) in [("7", "7 8 - 7 7 7 9"), ("", "- 8 - - - - 9"), ("0", "- 8 - - - - 9")] {
        client.query("SELECT set_config('howdah.job_id', $1, false)", &[&setting]).await.unwrap();
        client.batch_execute(enqueue).await.unwrap();
        assert_eq!(one::<String>(&client, parents).await, expected, "{setting:?}");
        client.batch_execute("DELETE FROM howdah.ready").await.unwrap();
    }
    client.batch_execute("SELECT set_config('howdah.job_id', 'junk', false)").await.unwrap();
    for call in ["enqueue('t')", "enqueue('t', key => 'k')", "enqueue_many('t', ARRAY['a'])"] {
        let (code, message) = refused(&client, &format!("SELECT howdah.{call}")).await;
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE);
        assert!(message.starts_with("the setting howdah.job_id is junk; 0 to"), "{call}: {message}");
    }
}

#[tokio::test]
async fn payloads_are_bytes_text_or_json_and_large_ones_are_kept_apart() {
    let database = database().await;
    let client = database.connect().await;
    let bytes: &[u8] = b"\x00\xff";
    client.query("SELECT howdah.enqueue('t', $1::bytea)", &[&bytes]).await.unwrap();
    client.query("SELECT howdah.enqueue('t', $1::text)", &[&"Grüße"]).await.unwrap();
    client.query("SELECT howdah.enqueue('t', $1::jsonb)", &[&serde_json::json!({"a": [1, null]})]).await.unwrap();
    client.query("SELECT howdah.enqueue('t')", &[]).await.unwrap();
    client.query("SELECT howdah.enqueue('t', $1::text)", &[&"x".repeat(1 << 20)]).await.unwrap();
    let rows = client.query("SELECT payload FROM howdah.job ORDER BY id", &[]).await.unwrap();
    let payloads: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(payloads[..4], [bytes, "Grüße".as_bytes(), br#"{"a": [1, null]}"#, b""].map(<[u8]>::to_vec));
    assert_eq!(payloads[4].len(), 1 << 20);
    assert_eq!(database.count("SELECT count(*) FROM howdah.payload").await, 1);
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "t", 10).await;
    for payload in payloads {
        assert_eq!(worker.job().await.payload[..], payload);
    }
}

#[tokio::test]
async fn a_types_settings_hold_for_jobs_by_sql() {
    let database = database().await;
    let client = database.connect().await;
    client
        .batch_execute(
            "INSERT INTO howdah.task_type (name, max_attempts, timeout_ms, max_payload_bytes, priority_step_us)
                        VALUES ('t', 4, 9000, 10, 1000000)",
        )
        .await
        .unwrap();
    for call in
        ["enqueue('t', 'x')", "enqueue('t', 'x', priority => 2)", "enqueue_many('t', ARRAY['x'], priority => 2)"]
    {
        client.query(&format!("SELECT howdah.{call}"), &[]).await.unwrap();
    }
    let as_set = "SELECT count(*) FROM howdah.ready r WHERE max_attempts = 4 AND timeout_ms = 9000
                  AND abs(rank - priority * 1000000 - extract(epoch FROM created) * 1000000) < 2
                  AND options IS NOT DISTINCT FROM CASE WHEN priority = 2 THEN '{\"priority_step_us\": 1000000}'::jsonb END";
    assert_eq!(database.count(as_set).await, 3);
    for sql in
        ["SELECT howdah.enqueue('t', '12345678901')", "SELECT howdah.enqueue_many('t', ARRAY['1', '12345678901'])"]
    {
        let (code, message) = refused(&client, sql).await;
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE);
        assert!(message.ends_with("has 11 bytes; at most 10 are allowed"), "{message}");
    }
}

#[tokio::test]
async fn keys_and_request_keys_make_repeats_safe() {
    let database = database().await;
    let client = database.connect().await;
    let first: i64 = one(&client, "SELECT howdah.enqueue('t', 'x', key => 'k')").await;
    assert_eq!(one::<i64>(&client, "SELECT howdah.enqueue('t', 'y', key => 'k')").await, first);
    let changed = "SELECT howdah.enqueue('t', 'z', key => 'k', key_policy => 'replace')";
    assert_eq!(one::<i64>(&client, changed).await, first);
    assert_eq!(one::<String>(&client, "SELECT convert_from(payload, 'UTF8') FROM howdah.job").await, "z");
    let (code, _) = refused(&client, "SELECT howdah.enqueue('t', 'z', key => 'k', key_policy => 'reject')").await;
    assert_eq!(code.code(), "HW002");
    let request = "SELECT howdah.enqueue('t', 'once', request_key => 'r')";
    assert_eq!(one::<i64>(&client, request).await, one::<i64>(&client, request).await);
    let (code, message) = refused(&client, "SELECT howdah.enqueue('t', 'other', request_key => 'r')").await;
    assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(message, "request_key \"r\" was used for other jobs; use another one");
    assert_eq!(jobs(&database).await, 2);
}

#[tokio::test]
async fn a_set_of_jobs_may_depend_on_each_other() {
    let database = database().await;
    let client = database.connect().await;
    let set = r#"SELECT string_agg(outcome, ' ') FROM howdah.enqueue_many('[
        {"task_type": "load", "payload": "a", "local_name": "a"},
        {"task_type": "load", "payload_base64": "/w==", "local_name": "b", "priority": 2},
        {"task_type": "sum", "payload": {"of": 2}, "after_local": ["a", "b"], "on_dependency_failure": "run"}]'::jsonb, 'set')"#;
    assert_eq!(one::<String>(&client, set).await, "new new new");
    assert_eq!(one::<String>(&client, set).await, "repeated repeated repeated");
    let broker = TestBroker::start(&database).await;
    let mut worker = Worker::connect(&broker.grpc, "load", 10).await;
    let mut sum = Worker::connect(&broker.grpc, "sum", 10).await;
    for _ in 0..2 {
        let job = worker.job().await;
        client.query(&format!("SELECT howdah.complete({}, {}, 'r'::text)", job.id, job.token), &[]).await.unwrap();
    }
    assert_eq!(&sum.job().await.payload[..], br#"{"of": 2}"#);
}

#[tokio::test]
async fn bad_input_is_told_by_name_and_stores_nothing() {
    let database = database().await;
    let client = database.connect().await;
    for (call, message) in [
        ("enqueue('a b')", "task_type is \"a b\"; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed"),
        ("enqueue(NULL)", "task_type is null; 1 to 200"),
        ("enqueue(E't\\n')", "task_type is \"t\\n\"; 1 to 200"),
        ("enqueue(repeat('t', 201))", "task_type is \"tttttttttttttttttttttttttttttttttttttttt…\"; 1 to 200"),
        ("enqueue('t', NULL::bytea)", "payload is null"),
        ("enqueue('t', repeat('x', 1048577))", "payload has 1048577 bytes; at most 1048576 are allowed"),
        ("enqueue('t', headers => '[]')", "headers is no JSON object of texts"),
        ("enqueue('t', headers => '{\"a\": 1}')", "headers \"a\" is no text"),
        (
            "enqueue('t', headers => jsonb_build_object('a', repeat('x', 8192)))",
            "headers has 1 entries of 8193 bytes together",
        ),
        ("enqueue('t', priority => 1001)", "priority is 1001; -1000 to 1000 is allowed"),
        ("enqueue('t', key => repeat('k', 201))", "key has 201 bytes; at most 200 are allowed"),
        ("enqueue('t', key => E'a\\nb')", "key \"a\\nb\" has a control character; none are allowed"),
        ("enqueue('t', run_at => 'infinity')", "run_at is"),
        ("enqueue('t', delay => '-1 s')", "delay is -00:00:01; 00:00:00 to 3650 days is allowed"),
        ("enqueue('t', delay => '3651 days')", "delay is 3651 days; 00:00:00 to 3650 days is allowed"),
        ("enqueue('t', delay => '1 s', run_at => now())", "delay is set together with run_at; set one of them"),
        ("enqueue('t', max_attempts => 0)", "max_attempts is 0; 1 to 1000 is allowed"),
        ("enqueue('t', timeout => '0')", "timeout is 00:00:00; 00:00:00.001 to 30 days is allowed"),
        (
            "enqueue('t', retry_policy => '{\"kind\": \"x\"}')",
            "retry_policy.kind is \"x\"; allowed are exponential, linear, fixed, list",
        ),
        (
            "enqueue('t', retry_policy => '{\"kind\": \"list\"}')",
            "retry_policy.delays is no array of 1 to 100 intervals",
        ),
        ("enqueue('t', retry_policy => '{\"jitter\": 2}')", "retry_policy.jitter is 2; 0 to 1 is allowed"),
        ("enqueue('t', retry_policy => '{\"delays\": [\"1 s\"]}')", "retry_policy.delays is not for kind exponential"),
        ("enqueue('t', retry_policy => '7')", "retry_policy is no JSON object"),
        ("enqueue('t', fallback => 't')", "fallback is the task type itself; name another one"),
        ("enqueue('t', key_policy => 'replace')", "key_policy is set without a key; set key too"),
        (
            "enqueue('t', key => 'k', key_policy => 'x')",
            "key_policy is \"x\"; allowed are keep, replace, replace_if_newer, reject, debounce",
        ),
        (
            "enqueue('t', key => 'k', key_policy => 'replace_if_newer')",
            "key_version is not set; replace_if_newer compares it",
        ),
        ("enqueue('t', key => 'k', key_policy => 'debounce')", "key_policy is debounce without a delay or run_at"),
        ("enqueue('t', expire_after => '1 s', delay => '2 s')", "expire_after is not after the job's start"),
        ("enqueue('t', stage_payload => 'result')", "stage_payload is set without next_stages; set those too"),
        ("enqueue('t', next_stages => '{a b}')", "next_stages[0] is \"a b\"; 1 to 200"),
        ("enqueue('t', after => '{0}')", "after[0] is 0; 1 to"),
        ("enqueue('t', parent_id => -1)", "parent_id is -1; 0 to"),
        ("enqueue_many('t', ARRAY['a', NULL])", "payloads[2] is null"),
        ("enqueue_many('t', ARRAY['a'], priority => 5000)", "priority is 5000; -1000 to 1000 is allowed"),
        ("enqueue_many('{}'::jsonb)", "jobs is no array of 1 to 10000 objects"),
        ("enqueue_many('[7]'::jsonb)", "jobs[0] is no object"),
        (
            "enqueue_many('[{\"task_type\": \"t\"}, {\"task_type\": \"t\", \"prio\": 1}]'::jsonb)",
            "jobs[1].prio is no option of a job",
        ),
        (
            "enqueue_many('[{\"task_type\": \"t\", \"priority\": 1.5}]'::jsonb)",
            "jobs[0].priority is 1.5; -1000 to 1000 is allowed",
        ),
        (
            "enqueue_many('[{\"task_type\": \"t\", \"delay\": \"soon\"}]'::jsonb)",
            "jobs[0].delay is \"soon\", which is no interval such as '5 minutes'",
        ),
        (
            "enqueue_many('[{\"task_type\": \"t\", \"run_at\": \"soon\"}]'::jsonb)",
            "jobs[0].run_at is \"soon\", which is no time",
        ),
        (
            "enqueue_many('[{\"task_type\": \"t\", \"payload_base64\": \"?\"}]'::jsonb)",
            "jobs[0].payload_base64 is no base64",
        ),
        (
            "enqueue_many('[{\"task_type\": \"t\", \"after_local\": [\"x\"]}]'::jsonb)",
            "jobs[0].after_local names a job that is not before it in jobs",
        ),
        ("on_change('howdah.task_type', 'a b')", "task_type is \"a b\"; 1 to 200"),
        ("snooze(1, 1, NULL)", "delay is null; 0 s to 365 days is allowed"),
        ("extend(1, 1, '31 days')", "duration is 31 days; 00:00:00.001 to 30 days is allowed"),
        ("reprioritize(1, 5000)", "priority is 5000; -1000 to 1000 is allowed"),
        ("complete(1, 1, repeat('x', 1048577))", "result has 1048577 bytes; at most 1048576 are allowed"),
    ] {
        let (code, told) = refused(&client, &format!("SELECT howdah.{call}")).await;
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{call}: {told}");
        assert!(told.starts_with(message), "{call}: {told}");
    }
    assert_eq!(jobs(&database).await, 0);
    let (code, message) = refused(&client, "SELECT howdah.enqueue('t', after => '{999}')").await;
    assert_eq!((code.code(), &message[..14]), ("HW001", "names job 999,"));
}
