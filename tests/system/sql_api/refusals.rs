//! Tests refused arguments of the SQL functions: the error names the argument, and nothing is stored.

use super::*;

#[tokio::test]
async fn invalid_arguments_are_refused_by_name_and_store_nothing() {
    let database = database().await;
    let client = database.connect().await;
    for (call, message) in [
        ("enqueue('a b')", "task_type is \"a b\"; 1 to 200 of A-Z a-z 0-9 . _ : / - are allowed"),
        ("enqueue(NULL)", "task_type is null; 1 to 200"),
        ("enqueue(E't\\n')", "task_type is \"t\\n\"; 1 to 200"),
        ("enqueue(repeat('t', 201))", "task_type is \"tttttttttttttttttttttttttttttttttttttttt...\"; 1 to 200"),
        ("enqueue('t', NULL::bytea)", "payload is null"),
        ("enqueue('t', repeat('x', 1048577))", "payload has 1048577 bytes; at most 1048576 are allowed"),
        ("enqueue('t', headers => '[]')", "headers is not a JSON object of texts"),
        ("enqueue('t', headers => '{\"a\": 1}')", "headers \"a\" is not a text"),
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
            "retry_policy.delays is not an array of 1 to 100 intervals",
        ),
        ("enqueue('t', retry_policy => '{\"jitter\": 2}')", "retry_policy.jitter is 2; 0 to 1 is allowed"),
        ("enqueue('t', retry_policy => '{\"delays\": [\"1 s\"]}')", "retry_policy.delays is not for kind exponential"),
        ("enqueue('t', retry_policy => '7')", "retry_policy is not a JSON object"),
        ("enqueue('t', fallback => 't')", "fallback is the task type itself; name another one"),
        ("enqueue('t', key_policy => 'replace')", "key_policy is set without key; set that too"),
        (
            "enqueue('t', key => 'k', key_policy => 'x')",
            "key_policy is \"x\"; allowed are keep, replace, replace_if_newer, reject, debounce",
        ),
        (
            "enqueue('t', key => 'k', key_policy => 'replace_if_newer')",
            "key_version is not set; replace_if_newer compares it",
        ),
        ("enqueue('t', key => 'k', key_policy => 'debounce')", "key_policy is debounce without a delay or run_at"),
        (
            "enqueue('t', expire_after => '1 s', delay => '2 s')",
            "expire_after counts from the enqueue and is not after the job's start",
        ),
        ("enqueue('t', stage_payload => 'result')", "stage_payload is set without next_stages; set that too"),
        ("enqueue('t', next_stages => '{a b}')", "next_stages[0] is \"a b\"; 1 to 200"),
        ("enqueue('t', after => '{0}')", "after[0] is 0; 1 to"),
        ("enqueue('t', parent_id => -1)", "parent_id is -1; 0 to"),
        ("enqueue_many('t', ARRAY['a', NULL])", "payloads[1] is null"),
        ("enqueue_many('t', ARRAY['a'], priority => 5000)", "priority is 5000; -1000 to 1000 is allowed"),
        ("enqueue_batch('{}'::jsonb)", "jobs is not an array of 1 to 10000 objects"),
        ("enqueue_batch('[7]'::jsonb)", "jobs[0] is not an object"),
        (
            "enqueue_batch('[{\"task_type\": \"t\"}, {\"task_type\": \"t\", \"prio\": 1}]'::jsonb)",
            "jobs[1].prio is not an option of a job",
        ),
        (
            "enqueue_batch('[{\"task_type\": \"t\", \"priority\": 1.5}]'::jsonb)",
            "jobs[0].priority is 1.5; -1000 to 1000 is allowed",
        ),
        (
            "enqueue_batch('[{\"task_type\": \"t\", \"delay\": \"soon\"}]'::jsonb)",
            "jobs[0].delay is \"soon\", which is not an interval such as '5 minutes'",
        ),
        (
            "enqueue_batch('[{\"task_type\": \"t\", \"run_at\": \"soon\"}]'::jsonb)",
            "jobs[0].run_at is \"soon\", which is not a time",
        ),
        (
            "enqueue_batch('[{\"task_type\": \"t\", \"payload_base64\": \"?\"}]'::jsonb)",
            "jobs[0].payload_base64 is not base64",
        ),
        (
            "enqueue_batch('[{\"task_type\": \"t\", \"after_local\": [\"x\"]}]'::jsonb)",
            "jobs[0].after_local names a job that does not come before it in jobs",
        ),
        ("on_change('howdah.task_type', 'a b')", "task_type is \"a b\"; 1 to 200"),
        ("snooze(1, 1, NULL)", "delay is null; 0 s to 365 days is allowed"),
        ("extend(1, 1, '31 days')", "duration is 31 days; 00:00:00.001 to 30 days is allowed"),
        ("reprioritize(1, 5000)", "priority is 5000; -1000 to 1000 is allowed"),
        ("complete(1, 1, repeat('x', 1048577))", "result has 1048577 bytes; at most 1048576 are allowed"),
    ] {
        refused_by_name(&client, &format!("SELECT howdah.{call}"), message).await;
    }
    assert_eq!(jobs(&database).await, 0);
}

#[tokio::test]
async fn wrong_types_within_json_and_arrays_are_refused_by_name() {
    let database = database().await;
    let client = database.connect().await;
    for (call, message) in [
        ("enqueue('t', after => '{NULL}')", "after[0] is null, which is not a number"),
        (
            "enqueue('t', on_dependency_failure => 'run')",
            "on_dependency_failure is set without after or after_local; set one of them too",
        ),
        ("enqueue('t', next_stages => '{a,NULL}')", "next_stages[1] is null, which is not a text"),
        (
            "enqueue('t', retry_policy => '{\"kind\": \"list\", \"delays\": [\"1 s\", null]}')",
            "retry_policy.delays[1] is null, which is not a text",
        ),
        (
            "enqueue('t', retry_policy => '{\"kind\": \"list\", \"delays\": null}')",
            "retry_policy.delays is not an array of 1 to 100 intervals",
        ),
        ("enqueue('t', retry_policy => '{\"kind\": 7}')", "retry_policy.kind is 7, which is not a text"),
        (
            "enqueue('t', retry_policy => '{\"initial_delay\": 5}')",
            "retry_policy.initial_delay is 5, which is not a text",
        ),
        ("enqueue('t', retry_policy => '{\"jitter\": \"1\"}')", "retry_policy.jitter is"),
        ("enqueue('t', retry_policy => '{\"multiplier\": 1e400}')", "retry_policy.multiplier is"),
        ("on_change(NULL, 't')", "table_name is null; name a table"),
        ("on_change('howdah.task_type', NULL)", "task_type is null; 1 to 200"),
    ] {
        refused_by_name(&client, &format!("SELECT howdah.{call}"), message).await;
    }
    for (job, message) in [
        (r#""after": [null]"#, "after[0] is null, which is not a number"),
        (r#""after": "x" "#, "after is not an array of at most 10000 ids of jobs"),
        (r#""after": [1.5]"#, "after[0] is 1.5; 1 to"),
        (r#""after_local": "x" "#, "after_local is not an array of at most 10000 local names"),
        (r#""after_local": [null]"#, "after_local[0] is null, which is not a text"),
        (r#""next_stages": "x" "#, "next_stages is not an array of at most 100 task types"),
        (r#""payload": "x", "payload_base64": "" "#, "payload_base64 is set together with payload; set one of them"),
        (r#""payload_base64": 5"#, "payload_base64 is 5, which is not a text"),
        (r#""headers": {"a": null}"#, "headers \"a\" is not a text"),
        (r#""headers": "a" "#, "headers is not a JSON object of texts"),
        (r#""key": {"a": 1}"#, "key is {\"a\": 1}, which is not a text"),
        (r#""local_name": 5"#, "local_name is 5, which is not a text"),
        (r#""task_type": 5"#, "task_type is 5, which is not a text"),
        (r#""run_at": 20300101"#, "run_at is 20300101, which is not a text"),
        (r#""delay": 5"#, "delay is 5, which is not a text"),
        (r#""priority": true"#, "priority is true; -1000 to 1000 is allowed"),
        (
            r#""on_dependency_failure": "run" "#,
            "on_dependency_failure is set without after or after_local; set one of them too",
        ),
        (
            r#""retry_policy": {"kind": "list", "delays": [null]}"#,
            "retry_policy.delays[0] is null, which is not a text",
        ),
    ] {
        let jobs = format!(r#"[{{"task_type": "t"}}, {{"task_type": "t", {job}}}]"#);
        let sql = format!("SELECT howdah.enqueue_batch('{jobs}')");
        refused_by_name(&client, &sql, &format!("jobs[1].{message}")).await;
    }
    assert_eq!(jobs(&database).await, 0);
    // A value close to 0 is valid, and null counts as omitted.
    for call in [
        "enqueue('t', priority => NULL, retry_policy => '{\"jitter\": 1e-400, \"max_delay\": null}')",
        "enqueue_many('t', ARRAY['a'], priority => NULL)",
        r#"enqueue_batch('[{"task_type": "t", "key": null, "headers": null, "payload": null, "payload_base64": "YQ=="}]')"#,
    ] {
        client.query(&format!("SELECT howdah.{call}"), &[]).await.expect(call);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.ready WHERE priority = 0").await, 3);
}

#[tokio::test]
async fn missing_dependencies_and_held_keys_are_refused_by_name() {
    let database = database().await;
    let client = database.connect().await;
    let held: i64 = client.query_one("SELECT howdah.enqueue('t', key => 'k')", &[]).await.unwrap().get(0);
    let reject = r#"{"task_type": "t", "key": "k", "key_policy": "reject"}"#;
    for (call, code, column, message) in [
        ("enqueue('t', after => '{999}')", "HW001", "after", "after names job 999, which does not exist"),
        ("enqueue('t', key => 'k', key_policy => 'reject')", "HW002", "key", "key: job 1 holds the key \"k\""),
        (
            r#"enqueue_batch('[{"task_type": "t"}, {"task_type": "t", "after": [999]}]')"#,
            "HW001",
            "jobs[1].after",
            "jobs[1].after names job 999, which",
        ),
        (
            &format!(r#"enqueue_batch('[{{"task_type": "t"}}, {reject}]', 'request')"#),
            "HW002",
            "jobs[1].key",
            "jobs[1].key: job 1 holds",
        ),
    ] {
        let error = client.query(&format!("SELECT howdah.{call}"), &[]).await.expect_err(call);
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code().code(), error.column()), (code, Some(column)), "{error:?}");
        assert_eq!((error.detail(), error.hint()), (None, None), "internal detail for the broker");
        let message = message.replace("job 1 ", &format!("job {held} "));
        assert!(error.message().starts_with(&message), "{error:?}");
    }
    assert_eq!(jobs(&database).await, 1);
}
