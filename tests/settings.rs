//! Settings of a task type: each on every broker, within a second.

use howdah_proto::v1::{
    Ack, EnqueueJobsRequest, HistoryMode, NewJob, Outcome, PullJobsRequest, SettleStatus, StreamEnqueueRequest,
    Subscribe, TaskTypeSettings, UpdateTaskTypeRequest, Window, new_job as start, outcome,
};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::support::{
    TestBroker, TestDatabase, Worker, ack, database, jobs_client, metrics, nack, new_job, run, soon, task_types_client,
    until, workers_client,
};

async fn enqueue(broker: &TestBroker, jobs: Vec<NewJob>) -> Result<Vec<i64>, Status> {
    let request = EnqueueJobsRequest { jobs, ..Default::default() };
    let answer = soon("an answer", jobs_client(&broker.grpc).await.enqueue_jobs(request)).await?;
    Ok(answer.into_inner().jobs.iter().map(|j| j.id).collect())
}

fn jobs(task_type: &str, count: usize) -> Vec<NewJob> {
    (0..count).map(|n| new_job(task_type, format!("{n}"))).collect()
}

async fn set(broker: &TestBroker, task_type: &str, settings: TaskTypeSettings) -> Result<TaskTypeSettings, Status> {
    let update = UpdateTaskTypeRequest { task_type: task_type.into(), settings: Some(settings) };
    let answer = soon("an answer", task_types_client(&broker.grpc).await.update_task_type(update)).await?;
    Ok(answer.into_inner().settings.expect("settings"))
}

/// Waits until one broker goes by what was set at the other before: within a second, unless the machine is slow.
/// It reads all settings at once, so when it refuses a payload by one that is set now, it has read the others too.
/// Nothing is stored either way: the job is to run after one that there is not.
pub async fn until_read(database: &TestDatabase, setter: &TestBroker, reader: &TestBroker) {
    let probe = format!("probe/{}", rand::random::<u64>());
    set(setter, &probe, TaskTypeSettings { max_payload_bytes: 1, ..Default::default() }).await.expect("set");
    let job = NewJob { after: vec![1_000_000_000], ..new_job(&probe, "xx") };
    let pace = database.connect().await;
    soon("the settings at the other broker", async {
        loop {
            let refused = field(&enqueue(reader, vec![job.clone()]).await.expect_err("after a job that there is not"));
            if refused == "jobs[0].payload" {
                return;
            }
            assert_eq!(refused, "jobs[0].after");
            pace.simple_query("SELECT pg_sleep(0.02)").await.expect("pg_sleep");
        }
    })
    .await;
}

/// So long does a broker go by its last count of a backlog.
async fn a_second(database: &TestDatabase) {
    database.connect().await.simple_query("SELECT pg_sleep(1.1)").await.expect("pg_sleep");
}

fn field(error: &Status) -> String {
    let details = error.get_error_details();
    details.bad_request().map(|bad| bad.field_violations[0].field.clone()).unwrap_or_default()
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

#[tokio::test]
async fn jobs_of_a_paused_type_stay_where_they_are_on_every_broker_until_it_goes_on() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    // A type besides that only one of them takes: either broker may claim what both have a window for.
    let windows = |other: &str| ["p", other].map(|t| Window { task_type: t.into(), jobs: 10, bytes: 0 }).to_vec();
    let mut on_a = Worker::subscribe(&a.grpc, Subscribe { windows: windows("qa"), ..Default::default() }).await;
    enqueue(&a, jobs("p", 1)).await.expect("enqueue");
    let running = on_a.job().await;
    let mut on_b = Worker::subscribe(&b.grpc, Subscribe { windows: windows("qb"), ..Default::default() }).await;
    set(&a, "p", TaskTypeSettings { paused: true, ..Default::default() }).await.expect("pause");
    until_read(&database, &a, &b).await;
    for (broker, worker, unpaused) in [(&a, &mut on_a, "qa"), (&b, &mut on_b, "qb")] {
        enqueue(broker, jobs("p", 2)).await.expect("enqueue");
        // The way of the others is free: what comes after has come.
        enqueue(broker, jobs(unpaused, 1)).await.expect("enqueue");
        let other = worker.job().await;
        assert_eq!(other.task_type, unpaused);
        worker.ack(&other).await;
        let pull =
            PullJobsRequest { task_types: vec!["p".into()], max_jobs: 5, wait: seconds(1), ..Default::default() };
        let pulled = soon("an answer", workers_client(&broker.grpc).await.pull_jobs(pull)).await.expect("pull");
        assert_eq!(pulled.into_inner().jobs.len(), 0);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.job WHERE task_type = 'p' AND state = 'ready'").await, 4);
    assert_eq!(on_a.ack(&running).await.status(), SettleStatus::Ok, "what runs, runs on");
    set(&b, "p", TaskTypeSettings::default()).await.expect("resume");
    for _ in 0..4 {
        let (worker, job) = tokio::select! {
            job = on_a.job() => (&mut on_a, job),
            job = on_b.job() => (&mut on_b, job),
        };
        assert_eq!(job.task_type, "p");
        worker.settle(vec![ack(&job)]).await;
    }
    until(&database, "five acks", "SELECT count(*) = 5 FROM howdah.job WHERE task_type = 'p' AND state = 'succeeded'")
        .await;
}

#[tokio::test]
async fn a_pull_that_waits_gets_its_job_when_the_type_goes_on() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    set(&broker, "p", TaskTypeSettings { paused: true, ..Default::default() }).await.expect("pause");
    let id = enqueue(&broker, jobs("p", 1)).await.expect("enqueue")[0];
    let pull = PullJobsRequest { task_types: vec!["p".into()], max_jobs: 5, wait: seconds(60), ..Default::default() };
    let mut client = workers_client(&broker.grpc).await;
    let pulling = tokio::spawn(async move { client.pull_jobs(pull).await });
    set(&broker, "p", TaskTypeSettings::default()).await.expect("resume");
    let pulled = soon("the job", pulling).await.expect("no panic").expect("pull").into_inner();
    assert_eq!(pulled.jobs[0].id, id);
}

#[tokio::test]
async fn the_types_timeout_is_for_jobs_that_say_none() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    // Long enough for none of them to pass before the ack.
    set(&a, "t", TaskTypeSettings { timeout: seconds(3000), ..Default::default() }).await.expect("set");
    until_read(&database, &a, &b).await;
    let own = NewJob { timeout: seconds(700), ..new_job("t", "own") };
    let keyed = NewJob { key: "k".into(), ..new_job("t", "keyed") };
    enqueue(&b, vec![new_job("t", "none"), own]).await.expect("enqueue");
    enqueue(&b, vec![keyed, new_job("u", "another type")]).await.expect("enqueue");
    let timeouts = |ms: &str| format!("SELECT count(*) FROM howdah.ready WHERE timeout_ms {ms}");
    assert_eq!(database.count(&timeouts("= 3000000")).await, 2);
    assert_eq!(database.count(&timeouts("= 700000")).await, 1);
    assert_eq!(database.count(&timeouts("IS NULL")).await, 1);
    // Straight to the worker too.
    let mut worker = Worker::connect(&b.grpc, "t", 10).await;
    for _ in 0..3 {
        let job = worker.job().await;
        worker.ack(&job).await;
    }
    enqueue(&b, jobs("t", 1)).await.expect("enqueue");
    let job = worker.job().await;
    assert!(job.deadline.is_some());
    until(&database, "a deadline", "SELECT deadline = leased_at + interval '3000 seconds' FROM howdah.leased").await;
}

#[tokio::test]
async fn a_payload_larger_than_its_type_takes_is_refused_with_both_sizes_and_nothing_is_stored() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set(&a, "l", TaskTypeSettings { max_payload_bytes: 10, ..Default::default() }).await.expect("set");
    until_read(&database, &a, &b).await;
    for broker in [&a, &b] {
        let error = enqueue(broker, vec![new_job("l", vec![0; 10]), new_job("l", vec![0; 11])]).await.unwrap_err();
        assert_eq!((error.code(), field(&error)), (Code::InvalidArgument, "jobs[1].payload".into()));
        assert!(error.message().contains("11 bytes") && error.message().contains("at most 10"), "{}", error.message());
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 0);
    enqueue(&a, vec![new_job("l", vec![0; 10]), new_job("other", vec![0; 11])]).await.expect("enqueue");
    let error = set(&a, "l", TaskTypeSettings { max_payload_bytes: (1 << 20) + 1, ..Default::default() }).await;
    assert_eq!(field(&error.unwrap_err()), "settings.max_payload_bytes");
}

#[tokio::test]
async fn an_enqueue_over_the_largest_backlog_is_exhausted_and_told_when_to_try_again() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    set(&a, "b", TaskTypeSettings { max_backlog: 10, ..Default::default() }).await.expect("set");
    until_read(&database, &a, &b).await;
    enqueue(&a, jobs("b", 8)).await.expect("enqueue");
    for broker in [&a, &b] {
        let mixed = [jobs("other", 1), jobs("b", 3)].concat();
        let error = enqueue(broker, mixed).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        let text = error.message();
        assert!(text.contains("jobs of b") && text.contains("max_backlog of 10") && text.contains("8 wait"), "{text}");
        let details = error.get_error_details();
        assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some("BACKLOG_FULL"));
        let after = details.retry_info().and_then(|info| info.retry_delay).expect("a delay");
        assert!(!after.is_zero() && after.as_secs() <= 10, "{after:?}");
    }
    // Nothing of those requests was stored, and neither other types nor smaller requests suffer.
    assert_eq!(database.count("SELECT count(*) FROM howdah.job").await, 8);
    enqueue(&a, [jobs("other", 20), jobs("b", 2)].concat()).await.expect("enqueue");
    let later = Some(start::Start::Delay(prost_types::Duration { seconds: 60, nanos: 0 }));
    let error = enqueue(&a, vec![NewJob { start: later, ..new_job("b", "") }]).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    // In a pipeline the request fails, and the stream goes on.
    let (send, requests) = mpsc::channel(4);
    let mut client = jobs_client(&a.grpc).await;
    for (sequence, task_type) in [(1, "b"), (2, "other")] {
        let request = StreamEnqueueRequest { sequence, jobs: jobs(task_type, 1), ..Default::default() };
        send.send(request).await.expect("send");
    }
    let mut answers = client.stream_enqueue(ReceiverStream::new(requests)).await.expect("stream").into_inner();
    let first = soon("an answer", answers.message()).await.expect("answer").expect("one").error.expect("an error");
    assert_eq!((first.code, first.reason.as_str()), (Code::ResourceExhausted as i32, "BACKLOG_FULL"));
    assert!(first.retry_after.is_some());
    assert_eq!(soon("an answer", answers.message()).await.expect("answer").expect("one").error, None);
    // More than would ever fit.
    let error = enqueue(&a, jobs("b", 11)).await.unwrap_err();
    assert_eq!((error.code(), field(&error)), (Code::InvalidArgument, "jobs".into()));
    let refused = metrics(&a.http).await;
    assert!(refused.contains("howdah_backlog_refusals_total 3\n"), "{refused}");
    // A worker makes room, for this broker at once, for the other with its next count.
    let mut worker = Worker::connect(&a.grpc, "b", 10).await;
    for _ in 0..10 {
        let job = worker.job().await;
        worker.settle(vec![ack(&job)]).await;
    }
    enqueue(&a, jobs("b", 1)).await.expect("room");
    a_second(&database).await;
    enqueue(&b, jobs("b", 1)).await.expect("room");
}

#[tokio::test]
async fn a_backlog_of_one_does_not_slow_down_jobs_that_workers_take_at_once() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    set(&broker, "b", TaskTypeSettings { max_backlog: 1, ..Default::default() }).await.expect("set");
    let mut worker = Worker::connect(&broker.grpc, "b", 10).await;
    for _ in 0..50 {
        enqueue(&broker, jobs("b", 1)).await.expect("room");
        let job = worker.job().await;
        assert_eq!(worker.ack(&job).await.status(), SettleStatus::Ok);
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.history").await, 50);
}

#[tokio::test]
async fn a_type_may_keep_only_succeeded_jobs_with_a_result_or_a_failure() {
    let database = database().await;
    let (a, b) = (TestBroker::start(&database).await, TestBroker::start(&database).await);
    let mode = HistoryMode::WithoutEmpty as i32;
    let stored = set(&a, "h", TaskTypeSettings { history: mode, ..Default::default() }).await.expect("set");
    assert_eq!(stored.history(), HistoryMode::WithoutEmpty);
    until_read(&database, &a, &b).await;
    let ids = enqueue(&b, [jobs("h", 3), jobs("full", 1)].concat()).await.expect("enqueue");
    let mut worker = Worker::connect(&b.grpc, "h", 3).await;
    let (empty, result, failed) = (worker.job().await, worker.job().await, worker.job().await);
    let with_result = outcome::Outcome::Ack(Ack { result: b"r".as_slice().into(), ..Ack::default() });
    let with_result = Outcome { id: result.id, token: result.token, outcome: Some(with_result) };
    worker.settle(vec![ack(&empty), with_result, nack(&failed, "once")]).await;
    for _ in 0..3 {
        assert_eq!(worker.settled().await.status(), SettleStatus::Ok);
    }
    let again = worker.job().await;
    assert_eq!(worker.ack(&again).await.status(), SettleStatus::Ok);
    let mut worker = Worker::connect(&b.grpc, "full", 1).await;
    let full = worker.job().await;
    assert_eq!(worker.ack(&full).await.status(), SettleStatus::Ok);
    let rows = database.connect().await.query("SELECT id FROM howdah.history ORDER BY id", &[]).await.expect("history");
    let kept: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let mut expected = vec![result.id, failed.id, ids[3]];
    expected.sort_unstable();
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn finished_jobs_are_kept_for_as_many_days_as_their_type_says() {
    let database = database().await;
    let setter = TestBroker::start(&database).await;
    set(&setter, "short", TaskTypeSettings { history_days: 2, ..Default::default() }).await.expect("set");
    set(&setter, "long", TaskTypeSettings { history_days: 30, ..Default::default() }).await.expect("set");
    set(&setter, "normal", TaskTypeSettings::default()).await.expect("set");
    setter.stop().await;
    let client = database.connect().await;
    // Finished 1, 3, 10 and 40 days ago; one in ten with a payload that is kept apart.
    let sql = "
        SELECT howdah.make_day_partition('history', 'finished', (now() AT TIME ZONE 'UTC')::date - d)
            FROM unnest(ARRAY[1, 3, 10, 40]) d;
        INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, options, payload)
            SELECT nextval('howdah.job_id'), now() - d * interval '1 day', now() - d * interval '1 day', t.id, 'succeeded', 1, 1, 0,
                   CASE WHEN n % 10 = 0 THEN '{\"payload_bytes\": 5}'::jsonb END, ''
            FROM unnest(ARRAY[1, 3, 10, 40]) d, howdah.task_type t, generate_series(1, 500) n;
        INSERT INTO howdah.payload (id, created, data)
            SELECT id, now(), 'large' FROM howdah.history
            WHERE options IS NOT NULL AND finished > now() - interval '20 days'";
    client.batch_execute(sql).await.expect("history");
    // The cleaning comes with the start.
    let broker = TestBroker::start(&database).await;
    let left = "SELECT array_agg(t.name || ' ' || days || ' ' || jobs ORDER BY t.name, days) = ARRAY[
                    'long 1 500', 'long 10 500', 'long 3 500', 'normal 1 500', 'normal 3 500', 'short 1 500']
                FROM (SELECT type_id, extract(day FROM now() - finished)::text AS days, count(*) AS jobs
                      FROM howdah.history GROUP BY 1, 2) h JOIN howdah.task_type t ON t.id = h.type_id";
    until(&database, "what is to be kept", left).await;
    until(&database, "their payloads", "SELECT count(*) = 300 FROM howdah.payload").await;
    until(&database, "a note of what was done", "SELECT count(*) = 2 FROM howdah.history_pruned").await;
    broker.stop().await;
}

#[tokio::test]
async fn a_setting_out_of_bounds_is_refused_by_its_name_and_changes_nothing() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let nanos = |nanos| Some(prost_types::Duration { seconds: 0, nanos });
    let d = TaskTypeSettings::default;
    let cases = [
        ("priority_step", TaskTypeSettings { priority_step: nanos(999_999), ..d() }),
        ("priority_step", TaskTypeSettings { priority_step: seconds(35_184_373), ..d() }),
        ("timeout", TaskTypeSettings { timeout: seconds(0), ..d() }),
        ("timeout", TaskTypeSettings { timeout: seconds(31 * 24 * 3600), ..d() }),
        ("max_payload_bytes", TaskTypeSettings { max_payload_bytes: -1, ..d() }),
        ("max_backlog", TaskTypeSettings { max_backlog: 10_000_001, ..d() }),
        ("max_backlog", TaskTypeSettings { max_backlog: -1, ..d() }),
        ("history_days", TaskTypeSettings { history_days: 3651, ..d() }),
        ("history", TaskTypeSettings { history: 5, ..d() }),
    ];
    for (name, settings) in cases {
        let error = set(&broker, "x", settings).await.expect_err(name);
        assert_eq!((error.code(), field(&error)), (Code::InvalidArgument, format!("settings.{name}")));
    }
    assert_eq!(database.count("SELECT count(*) FROM howdah.task_type").await, 0);
}

#[tokio::test]
async fn the_command_line_sets_shows_and_unsets_every_setting() {
    let database = database().await;
    let broker = TestBroker::start(&database).await;
    let server = ["--server", &broker.grpc];
    let set = "type set cli --max-attempts 3 --history without_empty --history-days 9 --priority-step 1m --timeout 30s \
               --paused true --max-payload-bytes 1000 --max-backlog 500";
    let set: Vec<&str> = set.split_whitespace().collect();
    let (status, _, err) = run(&[&set[..], &server].concat(), b"").await;
    assert!(status.success(), "{err}");
    let (_, shown, _) = run(&[&["type", "show", "cli"][..], &server].concat(), b"").await;
    for line in ["paused             true", "priority-step      1m", "retry-initial      -", "max-backlog        500"] {
        assert!(shown.lines().any(|shown| shown == line), "{line:?} in\n{shown}");
    }
    let (_, json, _) = run(&[&["type", "show", "cli", "--json"][..], &server].concat(), b"").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["history_days"], &json["priority_step"], &json["paused"]),
        (&9.into(), &60.0.into(), &true.into())
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
