//! Tests every option of the SQL functions.

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
                after => '{{{plain}}}', on_dependency_failure => 'run', parent_id => {plain}, traceparent => 'tp', tracestate => 'ts', tags => '{{one,two}}', history => 'none',
                request_key => 'r')"
        ),
    )
    .await;
    let expected = "SELECT count(*) FROM howdah.waiting w JOIN howdah.task_type t ON t.id = w.type_id
        WHERE t.name = 'a' AND w.priority = -5 AND key = 'k' AND w.max_attempts = 3 AND w.timeout_ms = 30000
        AND headers = '{\"tenant\": \"b\"}' AND convert_from(payload, 'UTF8')::jsonb = '{\"x\": 1}'
        AND options -> 'retry_policy' = '{\"kind\": \"linear\", \"initial_delay_ms\": 5000, \"max_delay_ms\": 60000, \"jitter\": 0.5}'
        AND options @> '{\"coordinated\": true, \"limit_key\": \"l\", \"fair_key\": \"fair\", \"stage_payload\": \"unchanged\",
                         \"on_dependency_failure\": \"run\", \"traceparent\": \"tp\", \"tracestate\": \"ts\", \"history\": \"none\", \"tags\": [\"one\", \"two\"]}'
        AND (options ->> 'parent_id')::bigint = (SELECT min(id) FROM howdah.ready)
        AND (options ->> 'fallback')::integer = (SELECT id FROM howdah.task_type WHERE name = 'f')
        AND (options -> 'next_stages') = (SELECT jsonb_agg(id ORDER BY name) FROM howdah.task_type WHERE name IN ('s1', 's2'))
        AND (options ->> 'start_us')::bigint - extract(epoch FROM w.created) * 1000000 BETWEEN 3599000000 AND 3601000000
        AND (SELECT version = 7 AND held_until > now() + interval '23 h' FROM howdah.job_key WHERE job_id = w.id)
        AND EXISTS (SELECT FROM howdah.expiry e WHERE e.id = w.id)
        AND EXISTS (SELECT FROM howdah.dependency d WHERE d.job_id = w.id)";
    assert_eq!(database.count(expected).await, 1, "job {id}");
}

#[tokio::test]
async fn jobs_enqueued_while_howdah_job_id_is_set_have_that_job_as_parent() {
    let database = database().await;
    let client = database.connect().await;
    let parents = "SELECT string_agg(coalesce(options ->> 'parent_id', '-'), ' ' ORDER BY id) FROM howdah.ready";
    let enqueue = "SELECT howdah.enqueue('t'), howdah.enqueue('t', 'x', parent_id => 8), howdah.enqueue('t', parent_id => 0),
                          howdah.enqueue('t', 'x', headers => '{\"a\": \"b\"}');
                   SELECT howdah.enqueue_many('t', ARRAY['a']);
                   SELECT howdah.enqueue_batch('[{\"task_type\": \"t\"}, {\"task_type\": \"t\", \"parent_id\": 9}]'::jsonb)";
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
async fn payloads_are_bytes_text_or_json_and_large_ones_are_stored_out_of_line() {
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
    let broker = TestBroker::on(&database).await;
    let mut worker = broker.worker("t").await;
    for payload in payloads {
        assert_eq!(worker.next().await.payload[..], payload);
    }
}

#[tokio::test]
async fn every_way_to_write_the_arguments_finds_its_function() {
    let database = database().await;
    let client = database.connect().await;
    let writings = [
        "'t', 'x'",
        "'t'::text, 'x'::text",
        "'t'::varchar, 'x'::varchar",
        "'t'::name, 'x'",
        "'t', payload => 'x'",
        "payload => 'x', task_type => 't'",
        "'t', 'x'::bytea",
        "'t', 'x', NULL",
        "'t'::text, 'x'::text, '{\"a\": \"b\"}'",
        "'t', 'x', priority => 3",
        "'t'::text, 'x', key => 'k'",
        "task_type => 't', delay => '1 h', payload => 'x'",
    ];
    for writing in writings {
        let id = one::<i64>(&client, &format!("SELECT howdah.enqueue({writing})")).await;
        let stored = format!("SELECT task_type || convert_from(payload, 'UTF8') FROM howdah.job WHERE id = {id}");
        assert_eq!(one::<String>(&client, &stored).await, "tx", "{writing}");
    }
    for (writing, payload) in
        [("'t'", ""), ("task_type => 't'", ""), ("'t', '{\"a\":1}'::jsonb", "{\"a\": 1}"), ("'t', key => 'l'", "")]
    {
        let id = one::<i64>(&client, &format!("SELECT howdah.enqueue({writing})")).await;
        let stored = format!("SELECT convert_from(payload, 'UTF8') FROM howdah.job WHERE id = {id}");
        assert_eq!(one::<String>(&client, &stored).await, payload, "{writing}");
    }
    // Calls the functions as drivers do: with explicit parameter types, and with types that Postgres infers.
    let typed = client.query_one("SELECT howdah.enqueue($1, $2)", &[&"t", &"typed"]).await.unwrap().get::<_, i64>(0);
    let json = serde_json::json!({"n": 1});
    let with_json = client.query_one("SELECT howdah.enqueue($1, $2::jsonb, key => $3)", &[&"t", &json, &"m"]).await;
    assert!(typed > 0 && with_json.unwrap().get::<_, i64>(0) > typed);
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
    let set = r#"SELECT string_agg(outcome, ' ') FROM howdah.enqueue_batch('[
        {"task_type": "load", "payload": "a", "local_name": "a"},
        {"task_type": "load", "payload_base64": "/w==", "local_name": "b", "priority": 2},
        {"task_type": "sum", "payload": {"of": 2}, "after_local": ["a", "b"], "on_dependency_failure": "run"}]'::jsonb, 'set')"#;
    assert_eq!(one::<String>(&client, set).await, "new new new");
    assert_eq!(one::<String>(&client, set).await, "repeated repeated repeated");
    let broker = TestBroker::on(&database).await;
    let mut worker = broker.worker("load").await;
    let mut sum = broker.worker("sum").await;
    for _ in 0..2 {
        let job = worker.next().await;
        client.query(&format!("SELECT howdah.complete({}, {}, 'r'::text)", job.id, job.token), &[]).await.unwrap();
    }
    assert_eq!(&sum.next().await.payload[..], br#"{"of": 2}"#);
}

#[tokio::test]
async fn a_request_is_the_same_whatever_the_sessions_settings() {
    let database = database().await;
    let client = database.connect().await;
    let mut ids = std::collections::HashSet::new();
    for settings in [
        "SET timezone = 'UTC'; SET datestyle = 'ISO, MDY'; SET intervalstyle = 'postgres'",
        "SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'",
        "SET timezone = 'America/New_York'; SET datestyle = 'German'; SET intervalstyle = 'iso_8601'",
        "SET timezone = 'Asia/Kolkata'; SET datestyle = 'Postgres'; SET intervalstyle = 'postgres_verbose'",
    ] {
        client.batch_execute(settings).await.unwrap();
        let sql = "SELECT howdah.enqueue('t', run_at => to_timestamp(1999999999.5), timeout => '1 day -1 hour',
                                         expire_at => to_timestamp(2000000100), request_key => 'r')";
        ids.insert(one::<i64>(&client, sql).await);
        assert_eq!(one::<String>(&client, "SHOW timezone").await, settings.split('\'').nth(1).unwrap());
    }
    assert_eq!(ids.len(), 1);
    let stored =
        "SELECT count(*) FROM howdah.scheduled WHERE run_at = to_timestamp(1999999999.5) AND timeout_ms = 82800000";
    assert_eq!(database.count(stored).await, 1);
}
