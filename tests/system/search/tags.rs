//! Tests that every way of enqueueing stores tags, and that tags stay with their job and are found by an index.

use howdah_client::{NewJob as ClientJob, NewSchedule, Plan};
use howdah_core::config::Config;
use howdah_proto::v1::{
    DiscardJobsRequest, HistoryMode, JobConditions, JobFilter, JobState, SearchJobsRequest, TaskTypeSettings,
};
use serde_json::Value;
use tonic::Code;

use super::{all, ids, page, refused};
use crate::{access::Guarded, http_producer::curl, support::*};

fn by_tag(task_type: &str, tag: &str) -> SearchJobsRequest {
    SearchJobsRequest {
        conditions: Some(JobConditions { tag: tag.into(), ..JobConditions::default() }),
        task_type: task_type.into(),
        ..SearchJobsRequest::default()
    }
}

fn in_state(task_type: &str, tag: &str, state: JobState) -> SearchJobsRequest {
    SearchJobsRequest { state: state as i32, ..by_tag(task_type, tag) }
}

/// Runs a SQL statement and returns the ids in its rows.
async fn sql_ids(broker: &TestBroker, sql: &str) -> Vec<i64> {
    let rows = broker.database.connect().await.query(sql, &[]).await.expect(sql);
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn jobs_tagged_by_grpc_http_sql_command_line_or_schedule_are_found_by_tag() {
    let broker = TestBroker::start_with(|config| config.http_enqueue = true).await;
    let job = || new_job("t", "x").tags(&["b", "a", "b"]);
    // Enqueues tagged jobs in several ways: without other options, with a key, with a start time, beside a coordinated
    // job, and as a repeated request.
    let mut expected = vec![broker.enqueue(job()).await];
    expected.push(broker.enqueue(job().key("k")).await);
    expected.extend(
        broker.enqueue_all([job().delay(HOUR), new_job("t", ""), job().limit_key("l")]).await.into_iter().step_by(2),
    );
    let first = broker.enqueue(job()).request_key("r").await;
    assert_eq!(broker.enqueue(job()).request_key("r").await, first);
    expected.push(first);
    let refused = broker.enqueue(job().tags(&["b"])).request_key("r").refused().await;
    assert_eq!(refused.code, Code::AlreadyExists, "another list of tags is another request: {refused}");
    let (status, answer) = curl(&broker, "/v1/jobs/t?tags=b&tags=a", &[], b"x").await;
    assert_eq!(status, 200, "{answer}");
    let (status, batch) = curl(
        &broker,
        "/v1/jobs",
        &["Content-Type: application/json"],
        br#"{"jobs": [{"task_type": "t", "payload": "eA==", "tags": ["b", "a"]}]}"#,
    )
    .await;
    assert_eq!(status, 200, "{batch}");
    let id = |value: &Value| value["id"].as_str().expect("an id").parse::<i64>().expect("a number");
    expected.extend([id(&answer), id(&batch["jobs"][0])]);
    for call in [
        "SELECT howdah.enqueue('t', 'x', tags => ARRAY['b', 'a', 'b'])",
        "SELECT howdah.enqueue('t', 'x', tags => '{b,a}', key => 'sql', delay => '1 h')",
        "SELECT howdah.enqueue_many('t', ARRAY['x', repeat('y', 2000)], tags => '{b,b,a}')",
        r#"SELECT id FROM howdah.enqueue_batch('[{"task_type": "t", "tags": ["b", "a", "a"]}]')"#,
    ] {
        expected.extend(sql_ids(&broker, call).await);
    }
    let server = ["--server", broker.address()];
    let (status, out, err) =
        run(&[&["enqueue", "t", "x", "--tag", "b", "--tag", "a"], &server[..]].concat(), b"").await;
    assert!(status.success(), "{err}");
    expected.push(out.trim().parse().expect("an id"));
    let request = br#"{"jobs": [{"task_type": "t", "payload": "eA==", "tags": ["b", "a"]}]}"#;
    let lines = ["enqueue", "t", "--lines", "--tag", "b", "--tag", "a"];
    for (words, input) in [(&["enqueue", "--request", "-"][..], &request[..]), (&lines, b"x")] {
        let (status, out, err) = run(&[words, &server[..]].concat(), input).await;
        assert!(status.success(), "{err}");
        expected.push(out.trim().parse().expect("an id"));
    }
    let client = broker.client().await;
    let scheduled = ClientJob::new("t").payload("x").tags(["b", "a", "a"]);
    client.create_schedule(NewSchedule::new("s", scheduled, Plan::every(HOUR)).start(far())).await.expect("create");
    expected.push(client.run_schedule("s").await.expect("run").id);

    expected.sort_unstable_by_key(|id| -id);
    for tag in ["a", "b"] {
        let (found, end) = all(&broker, by_tag("t", tag)).await;
        assert_eq!(found, expected, "the newest jobs come first");
        assert_eq!((end.scanned_count, end.estimated_count), (expected.len() as i64, expected.len() as i64));
        let by_two = SearchJobsRequest { page_size: 2, ..by_tag("t", tag) };
        assert_eq!(ids(&broker, by_two).await, expected);
    }
    for id in &expected {
        assert_eq!(broker.job(*id).await.tags, ["b", "a"], "job {id}");
    }
    let listed = page(&broker, by_tag("t", "a")).await;
    assert!(listed.jobs.iter().all(|job| job.tags == ["b", "a"]), "{listed:?}");
    assert_eq!(ids(&broker, by_tag("t", "A")).await, [0_i64; 0], "tags are case-sensitive");
    assert_eq!(
        broker.count("SELECT count(*) FROM howdah.job WHERE tags = '[\"b\", \"a\"]'").await,
        expected.len() as i64
    );
}

#[tokio::test]
async fn a_job_is_found_by_its_tag_in_every_state_and_its_worker_sees_it() {
    let broker = TestBroker::start().await;
    let tagged = || new_job("t", "x").tags(&["tag"]);
    let mut worker = broker.worker("t").window(1).await;
    let succeeded = broker.enqueue(tagged()).await;
    let job = worker.next().await;
    assert_eq!(job.tags, ["tag"]);
    worker.ack(&job).await;
    assert_eq!(broker.wait(succeeded).await.tags, ["tag"], "the answer of a wait has the tags");
    let mut dead = Vec::new();
    for _ in 0..3 {
        dead.push(broker.enqueue(tagged().max_attempts(1)).await);
        let job = worker.next().await;
        worker.nack(&job, "no").await;
    }
    let filter = Some(JobFilter { ids: vec![dead[0]], ..JobFilter::default() });
    broker.jobs().discard_jobs(DiscardJobsRequest { filter, ..Default::default() }).await.expect("discard");
    let leased = broker.enqueue(tagged()).await;
    worker.next().await;
    let scheduled = broker.enqueue(tagged().delay(HOUR)).await;
    let waiting = broker.enqueue(tagged().after(&[scheduled])).await;
    let cancelled = broker.enqueue(tagged()).await;
    assert_eq!(broker.cancel(&[cancelled]).await, [cancelled]);
    let ready = broker.enqueue(tagged()).await;
    broker.enqueue(new_job("t", "x").tags(&["another"])).await;
    broker.enqueue(new_job("t", "x")).await;
    let other_type = broker.enqueue(new_job("u", "x").tags(&["tag"])).await;
    let expected = [
        (JobState::Succeeded, vec![succeeded]),
        (JobState::Discarded, vec![dead[0]]),
        (JobState::Dead, vec![dead[2], dead[1]]),
        (JobState::Leased, vec![leased]),
        (JobState::Scheduled, vec![scheduled]),
        (JobState::Waiting, vec![waiting]),
        (JobState::Cancelled, vec![cancelled]),
        (JobState::Ready, vec![ready]),
    ];
    for (state, jobs) in &expected {
        assert_eq!(&ids(&broker, in_state("t", "tag", *state)).await, jobs, "{state:?}");
    }
    let mut of_any: Vec<i64> = expected.iter().flat_map(|(_, jobs)| jobs).copied().collect();
    of_any.sort_unstable_by_key(|id| -id);
    assert_eq!(ids(&broker, by_tag("t", "tag")).await, of_any);
    assert_eq!(ids(&broker, by_tag("u", "tag")).await, [other_type], "each task type has its own tags");
    assert_eq!(ids(&broker, by_tag("nothing", "tag")).await, [0_i64; 0]);
    // After a retry, the job is found in its new state.
    assert_eq!(broker.retry(&[dead[1]]).await, [dead[1]]);
    assert_eq!(ids(&broker, in_state("t", "tag", JobState::Dead)).await, [dead[2]]);
    assert_eq!(ids(&broker, in_state("t", "tag", JobState::Ready)).await, [ready, dead[1]]);
}

#[tokio::test]
async fn tags_stay_with_a_job_through_stages_and_fallback_and_a_replacement_changes_them() {
    let broker = TestBroker::start().await;
    let [mut first, mut second] = [broker.worker("first").await, broker.worker("second").await];
    let id = broker
        .enqueue(new_job("first", "x").tags(&["way"]).next_stages(&["second"]).max_attempts(1).fallback("third"))
        .await;
    let job = first.next().await;
    assert_eq!(ids(&broker, by_tag("first", "way")).await, [id]);
    first.ack(&job).await;
    let job = second.next().await;
    assert_eq!(job.tags, ["way"]);
    assert_eq!(ids(&broker, by_tag("second", "way")).await, [id]);
    assert_eq!(ids(&broker, by_tag("first", "way")).await, [0_i64; 0], "the job has left this type");
    second.nack(&job, "no").await;
    eventually("the job in its fallback", async || broker.job(id).await.task_type == "third").await;
    let found = page(&broker, by_tag("third", "way")).await.jobs;
    assert_eq!((found[0].id, found[0].tags[0].as_str()), (id, "way"));
    // Also tests a job that goes to its fallback type because a SQL worker fails it.
    let id = broker.enqueue(new_job("plain", "x").tags(&["way"]).max_attempts(1).fallback("third")).await;
    let mut worker = broker.worker("plain").await;
    let job = worker.next().await;
    broker.sql(&format!("SELECT howdah.fail({id}, {}, 'no', no_retry => true)", job.token)).await;
    assert_eq!(ids(&broker, by_tag("third", "way")).await[0], id);

    let keyed = |tag: &str| new_job("k", "x").key("k").tags(&[tag]).delay(HOUR);
    let id = broker.enqueue(keyed("old")).await;
    assert_eq!(broker.enqueue(keyed("new").replace()).await, id);
    assert_eq!(ids(&broker, by_tag("k", "new")).await, [id]);
    let (found, end) = all(&broker, by_tag("k", "old")).await;
    assert_eq!((found.len(), end.scanned_count), (0, 1), "a replaced job has the tags of its replacement");
    assert_eq!(broker.enqueue(keyed("new").replace()).await, id);
    assert_eq!(ids(&broker, by_tag("k", "new")).await, [id], "once");
    broker.enqueue(new_job("k", "x").key("k").delay(HOUR).replace()).await;
    assert_eq!(ids(&broker, by_tag("k", "new")).await, [0_i64; 0]);
}

#[tokio::test]
async fn jobs_of_a_lost_worker_are_found_in_their_fallback() {
    let broker = TestBroker::start().await;
    // Starts a broker that rescues the leases of dead brokers soon.
    let quick = |c: &mut Config| {
        c.broker_lease = secs(2);
        c.renew_interval = millis(500);
    };
    let _rescuer = broker.another_with(quick).await;
    let id = broker.enqueue(new_job("t", "x").tags(&["way"]).max_attempts(1).fallback("f")).await;
    let mut worker = broker.worker("t").await;
    worker.next().await;
    // Assigns the lease to an expired broker, as if its broker had been killed.
    let gone = "INSERT INTO howdah.broker (id, name, expires) VALUES (999999, 'gone', now() - interval '1 minute');
                UPDATE howdah.leased SET broker_id = 999999";
    broker.sql(gone).await;
    eventually("the job in its fallback", async || broker.job(id).await.task_type == "f").await;
    assert_eq!(ids(&broker, by_tag("f", "way")).await, [id]);
}

#[tokio::test]
async fn invalid_tags_are_refused_by_name_in_every_api() {
    let broker = TestBroker::start_with(|config| config.http_enqueue = true).await;
    let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = "é".repeat(33);
    for (tags, field) in [
        (&["a", ""][..], "tags[1]"),
        (&[&long], "tags[0]"),
        (&["a", "b", "c\n"], "tags[2]"),
        (&["\u{85}"], "tags[0]"),
        (&many, "tags"),
    ] {
        let jobs = [new_job("t", ""), new_job("t", "").tags(tags)];
        broker.enqueue_all(jobs).refused().await.names(&format!("jobs[1].{field}"));
        let array = serde_json::to_string(tags).expect("JSON");
        for (call, prefix) in [
            (
                format!(
                    "SELECT howdah.enqueue('t', 'x', tags => ARRAY(SELECT jsonb_array_elements_text($${array}$$)))"
                ),
                "",
            ),
            (
                format!(
                    "SELECT howdah.enqueue_many('t', ARRAY['x'], tags => ARRAY(SELECT jsonb_array_elements_text($${array}$$)))"
                ),
                "",
            ),
            (
                format!(
                    r#"SELECT howdah.enqueue_batch($$[{{"task_type": "t"}}, {{"task_type": "t", "tags": {array}}}]$$)"#
                ),
                "jobs[1].",
            ),
        ] {
            let error = broker.database.connect().await.batch_execute(&call).await.expect_err(&call);
            let error = error.as_db_error().expect("an error of Postgres");
            assert_eq!(error.code().code(), "22023", "{error:?}");
            assert!(error.message().starts_with(&format!("{prefix}{field} ")), "{call}: {error:?}");
        }
    }
    for (call, message) in [
        ("SELECT howdah.enqueue('t', 'x', tags => '{a,NULL}')", "tags[1] is null"),
        (r#"SELECT howdah.enqueue_batch('[{"task_type": "t", "tags": "a"}]')"#, "jobs[0].tags is not an array"),
        (r#"SELECT howdah.enqueue_batch('[{"task_type": "t", "tags": [1]}]')"#, "jobs[0].tags[0] is 1"),
    ] {
        let error = broker.database.connect().await.batch_execute(call).await.expect_err(call);
        assert!(error.as_db_error().expect("an error of Postgres").message().starts_with(message), "{error:?}");
    }
    let (status, answer) = curl(&broker, "/v1/jobs/t?tags=", &[], b"").await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("tags[0]"), "{answer}");
    let (status, _, err) = run(&["enqueue", "t", "--tag", "a\tb", "--server", broker.address()], b"").await;
    assert_eq!(status.code(), Some(65), "{err}");
    assert!(err.starts_with("howdah: --tag "), "{err}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job").await, 0);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_tag").await, 0);
    for (field, request) in [
        ("query", by_tag("t", "")),
        ("conditions.tag", by_tag("t", &long)),
        ("conditions.tag", by_tag("t", "a\0")),
        ("task_type", by_tag("", "a")),
        ("since", SearchJobsRequest { since: Some(prost_types::Timestamp::default()), ..by_tag("t", "a") }),
    ] {
        let refused = refused(&broker, request).await;
        assert_eq!((refused.code, refused.field.as_str()), (Code::InvalidArgument, field), "{refused}");
    }
    let nasty = r#"100%_\ '; DROP TABLE howdah.ready; -- $1 ünd "{}"#;
    let id = broker.enqueue(new_job("t", "").tags(&[nasty])).await;
    assert_eq!(ids(&broker, by_tag("t", nasty)).await, [id]);
    assert_eq!(ids(&broker, by_tag("t", "%")).await, [0_i64; 0]);
}

#[tokio::test]
async fn a_search_ends_with_its_page_however_many_jobs_have_the_tag() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(["t", "other"]).await;
    let of_type = |name: &str| format!("(SELECT id FROM howdah.task_type WHERE name = '{name}')");
    let (t, other) = (of_type("t"), of_type("other"));
    broker
        .sql(&format!(
            "DELETE FROM howdah.ready;
             INSERT INTO howdah.history SELECT i, now(), now(), now(), i, {t}, 'succeeded', 1, 10, 0, null, null, '{{\"tags\": [\"many\"]}}', null, 'x', null
                 FROM generate_series(1, 25000) i;
             INSERT INTO howdah.job_tag SELECT i, now(), hashtext('many'), {t} FROM generate_series(1, 25000) i;
             INSERT INTO howdah.job_tag SELECT i, now(), hashtext('many'), {other} FROM generate_series(1, 25000) i;
             INSERT INTO howdah.job_tag SELECT i, now(), hashtext('gone'), {t} FROM generate_series(30001, 55000) i"
        ))
        .await;
    let first = page(&broker, by_tag("t", "many")).await;
    assert_eq!(first.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), (24_901..=25_000).rev().collect::<Vec<i64>>());
    assert_eq!((first.scanned_count, first.estimated_count), (100, 10_000));
    let next = page(&broker, SearchJobsRequest { page_token: first.next_page_token, ..by_tag("t", "many") }).await;
    assert_eq!((next.jobs[0].id, next.scanned_count), (24_900, 200));
    // A search skips index entries of jobs that are deleted, or that now have another type or state. The number of skipped
    // entries per page is bounded.
    for request in [by_tag("other", "many"), by_tag("t", "gone"), in_state("t", "many", JobState::Dead)] {
        let first = page(&broker, request.clone()).await;
        assert!(first.jobs.is_empty() && !first.next_page_token.is_empty());
        assert!((100..=11_000).contains(&first.scanned_count), "{}", first.scanned_count);
        let (found, end) = all(&broker, request).await;
        assert_eq!((found.len(), end.scanned_count), (0, 25_000));
    }
}

#[tokio::test]
async fn a_search_by_tag_finds_no_job_whose_history_was_dropped_or_is_not_kept() {
    let broker = TestBroker::start_with(|config| config.history_days = 3_650).await;
    broker.set("none", TaskTypeSettings { history: HistoryMode::None as i32, ..Default::default() }).await;
    let mut worker = broker.worker("none").await;
    broker.enqueue(new_job("none", "").tags(&["a"])).await;
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(ids(&broker, by_tag("none", "a")).await, [0_i64; 0]);

    let mut worker = broker.worker("t").window(1).await;
    let [done, stays] = broker.enqueue_all(["t", "t"].map(|name| new_job(name, "").tags(&["a"]))).await[..] else {
        panic!()
    };
    let job = worker.next().await;
    worker.ack(&job).await;
    assert_eq!(ids(&broker, by_tag("t", "a")).await, [stays, done]);
    // Moves the tag entries to last month. Retention then keeps the tag of the unfinished job, by moving it to the partition of
    // today.
    let client = broker.database.connect().await;
    let day = "SELECT ((min(created) AT TIME ZONE 'UTC')::date - 30)::text FROM howdah.job_tag";
    let day: String = client.query_one(day, &[]).await.expect(day).get(0);
    let old = format!(
        "SELECT howdah.make_day_partition('job_tag', 'created', '{day}'), howdah.make_day_partition('history', 'finished', '{day}');
         UPDATE howdah.job_tag SET created = created - interval '30 days';
         UPDATE howdah.history SET finished = finished - interval '30 days'"
    );
    client.batch_execute(&old).await.expect("old");
    let drop = "SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date - 8)::bigint
                     + howdah.drop_tag_partitions((now() AT TIME ZONE 'UTC')::date - 8)";
    assert!(broker.database.count_unless_locked(drop).await >= 2);
    assert_eq!(ids(&broker, by_tag("t", "a")).await, [stays]);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.job_tag").await, 1);
}

#[tokio::test]
async fn a_search_by_tag_needs_the_right_to_read_and_no_more() {
    let guarded = Guarded::start().await;
    let mine = guarded.admin.enqueue(new_job("mine", "secret").tags(&["a"])).await;
    guarded.admin.enqueue(new_job("theirs", "secret").tags(&["a"])).await;
    let caller = guarded.caller("ann", &["read:mine"]).await;
    let found = page(&caller, by_tag("mine", "a")).await.jobs;
    assert_eq!((found[0].id, found[0].payload.len(), &found[0].tags[..]), (mine, 0, &["a".to_owned()][..]));
    assert_eq!(refused(&caller, by_tag("theirs", "a")).await.code, Code::PermissionDenied);
}

#[tokio::test]
async fn the_command_finds_a_tag_and_shows_it() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("t", "x").tags(&["batch 7", "b"]).delay(HOUR)).await;
    broker.enqueue(new_job("t", "x").delay(HOUR)).await;
    let howdah = async |words: &[&str]| run(&[&["--server", broker.address()], words].concat(), b"").await;
    let (status, out, err) = howdah(&["search", "t", "--tag", "batch 7", "--json"]).await;
    assert!(status.success(), "{err}");
    let found: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!((id_of(&found), &found["tags"]), (id, &serde_json::json!(["batch 7", "b"])));
    let (_, out, _) = howdah(&["job", &id.to_string()]).await;
    assert!(out.contains("tag       batch 7") && out.contains("tag       b"), "{out}");
    let (_, out, _) = howdah(&["jobs", "t", "--json"]).await;
    let listed: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!((&listed[0]["tags"], &listed[1]["tags"]), (&serde_json::json!(["batch 7", "b"]), &Value::Null));
    let (_, out, err) = howdah(&["search", "t", "--tag", "b", "--state", "dead"]).await;
    assert_eq!((out.as_str(), err.trim()), ("", "no such jobs in the database"));
}
