//! Tests the command line, as people and scripts use it.

mod messages; // messages for wrong values and empty lists

use std::pin::pin;

use howdah_proto::v1::JobState;
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::support::*;

fn server(broker: &TestBroker) -> [&str; 2] {
    ["--server", &broker.grpc]
}

async fn ok(args: &[&str], stdin: &[u8]) -> String {
    let (status, out, err) = run(args, stdin).await;
    assert!(status.success(), "{args:?}: {status}: {err}");
    out
}

#[tokio::test]
async fn a_request_file_enqueues_jobs_that_run_after_one_another_all_or_none() {
    let broker = TestBroker::start().await;
    let request = r#"{"jobs": [{"task_type": "load", "payload": "YQ==", "local_name": "a", "priority": 3},
                               {"task_type": "report", "after_local": ["a"]}]}"#;
    let command = ["enqueue", "--request", "-", "--request-key", "import 7"];
    let ids = ok(&[&command, &server(&broker)[..]].concat(), request.as_bytes()).await;
    let ids: Vec<i64> = ids.lines().map(|id| id.parse().unwrap()).collect();
    let [load, report] = ids[..] else { panic!("{ids:?}") };
    assert_eq!((broker.state(load).await, broker.state(report).await), (JobState::Ready, JobState::Waiting));
    let again = ok(&[&command, &server(&broker)[..]].concat(), request.as_bytes()).await;
    assert_eq!(again, format!("{load}\n{report}\n"), "the key makes a repeat safe");

    let wrong = r#"{"jobs": [{"task_type": "load"}, {"task_type": "report", "after_local": ["b"]}]}"#;
    let (status, _, stderr) =
        run(&[&["enqueue", "--request", "-"], &server(&broker)[..]].concat(), wrong.as_bytes()).await;
    assert_eq!(status.code(), Some(65), "{stderr}");
    assert!(stderr.contains("jobs[1].after_local[0]"), "{stderr}");
    assert_eq!(broker.database.count("SELECT count(*) FROM howdah.job").await, 2);
    let (status, _, stderr) = run(&[&["enqueue", "--request", "-"], &server(&broker)[..]].concat(), b"[1]").await;
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("is not a JSON object"), "{stderr}");
}

#[tokio::test]
async fn dev_starts_postgres_and_a_broker_prints_their_addresses_and_ends_with_a_signal() {
    let mut dev = Program::start_with(
        &["dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        &[("HOWDAH_DATA_DIR", "/dev/null")],
    );
    let ready = dev.line().await;
    let field = |name: &str| ready.split(' ').find_map(|w| w.strip_prefix(name)).unwrap_or_else(|| panic!("{ready}"));
    assert!(ready.starts_with("ready grpc=127.0.0.1:") && field("postgres=").starts_with("postgres://"));
    let grpc = field("grpc=").to_owned();
    let id = ok(&["enqueue", "greet", "hello", "--server", &grpc], b"").await;
    let shown = ok(&["job", id.trim(), "--json", "--server", &grpc], b"").await;
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["state"], "JOB_STATE_READY");
    // The database user has the name of the broker's schema, so `$user` in its search_path names that schema. Tables that the
    // user creates must still be in `public`.
    let (client, connection) = tokio_postgres::connect(field("postgres="), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE mine ()").await.unwrap();
    let schema = client.query_one("SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'mine'", &[]);
    assert_eq!(schema.await.unwrap().get::<_, String>(0), "public");
    dev.signal(Signal::TERM);
    assert!(dev.ended().await.success());
}

#[tokio::test]
async fn sighup_does_not_end_a_broker_without_tls() {
    let database = database().await;
    let mut broker = Program::serve(&database, &[]).await;
    broker.program.signal(Signal::HUP);
    ok(&["enqueue", "greet", "hello", "--server", &broker.grpc], b"").await;
    broker.program.signal(Signal::TERM);
    assert!(broker.program.ended().await.success());
}

#[tokio::test]
async fn a_drain_ends_after_the_jobs_that_waited_for_a_slot_of_their_limit_key() {
    let database = database().await;
    let broker = TestBroker::on(&database).await;
    let broker = server(&broker);
    ok(&[&["type", "set", "turns", "--key-max-running", "1"], &broker[..]].concat(), b"").await;
    let lines: String = (1..=20).map(|n| format!("{n}\n")).collect();
    ok(&[&["enqueue", "turns", "--lines", "--limit-key", "one"], &broker[..]].concat(), lines.as_bytes()).await;
    ok(&[&["work", "turns", "--exec", "cat", "--jobs", "8", "--drain=1m"], &broker[..]].concat(), b"").await;
    assert_eq!(database.count("SELECT count(*) FROM howdah.history").await, 20);
}

#[tokio::test]
async fn a_drain_waits_for_the_jobs_of_a_worker_that_was_killed() {
    let broker = TestBroker::start_with(|c| c.session_grace = secs(30)).await;
    let server = server(&broker);
    broker.enqueue_all(["left"; 4]).await;
    let hangs = ["work", "left", "--exec", "sleep infinity", "--jobs", "2"];
    let mut killed = Program::start(&[&hangs[..], &server].concat());
    broker.until("two leases", "SELECT count(*) = 2 FROM howdah.leased").await;
    killed.signal(Signal::KILL);
    killed.ended().await;
    let drains = ["work", "left", "--exec", "cat"];
    ok(&[&drains[..], &["--drain=now"], &server].concat(), b"").await;
    assert_eq!(
        broker.count("SELECT count(*) FROM howdah.leased").await,
        2,
        "--drain=now waited for jobs of other workers"
    );
    let (status, _, log) = run(&[&drains[..], &["--drain"], &server].concat(), b"").await;
    assert!(status.success() && log.contains("may become ready again"), "{log}");
    assert_eq!(broker.count("SELECT count(*) FROM howdah.history").await, 4);
}

#[tokio::test]
async fn a_drain_with_a_time_waits_for_jobs_that_are_due_within_it() {
    let broker = TestBroker::start().await;
    let server = server(&broker);
    let ids = broker.enqueue_all([new_job("later", "").delay(HOUR), new_job("later", "").delay(HOUR)]).await;
    ok(&[&["work", "later", "--exec", "cat", "--drain"], &server[..]].concat(), b"").await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.scheduled").await, 2);
    let sooner = format!("UPDATE howdah.scheduled SET run_at = now() + interval '3 s' WHERE id = {}", ids[0]);
    broker.sql(&sooner).await;
    ok(&[&["work", "later", "--exec", "cat", "--drain=1m"], &server[..]].concat(), b"").await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.scheduled").await, 1);
}

#[tokio::test]
async fn jobs_from_a_pipe_are_worked_by_a_command_and_show_their_results() {
    let broker = TestBroker::start().await;
    let lines: String = (1..=300).map(|n| format!("{n}\n")).collect();
    let ids = ok(&[&["enqueue", "square", "--lines"], &server(&broker)[..]].concat(), lines.as_bytes()).await;
    let ids: Vec<&str> = ids.lines().collect();
    assert_eq!(ids.len(), 300);
    let work = [
        "work",
        "square",
        "--exec",
        "read n; echo $((n * n)) $HOWDAH_TASK_TYPE $HOWDAH_ATTEMPT",
        "--jobs",
        "8",
        "--drain",
    ];
    ok(&[&work[..], &server(&broker)].concat(), b"").await;
    let results = broker.database.connect().await;
    let rows =
        results.query("SELECT convert_from(payload, 'UTF8'), convert_from(result, 'UTF8') FROM howdah.history", &[]);
    let rows = rows.await.unwrap();
    assert_eq!(rows.len(), 300);
    for row in rows {
        let n: i64 = row.get::<_, String>(0).parse().unwrap();
        assert_eq!(row.get::<_, String>(1).trim(), format!("{} square 1", n * n));
    }
    let types = ok(&[&["types", "--json"], &server(&broker)[..]].concat(), b"").await;
    let types: Value = serde_json::from_str(types.lines().next().unwrap()).unwrap();
    assert_eq!(types["name"], "square", "{types}");
}

#[tokio::test]
async fn a_command_that_fails_is_tried_again_with_its_error_and_65_fails_for_good() {
    let broker = TestBroker::start().await;
    // The next attempt is an hour away, so that the job is not ready again before a slow machine has checked its state.
    let id = ok(&[&["enqueue", "bad", "x", "--retry-delays", "1h"], &server(&broker)[..]].concat(), b"").await;
    let once = |command| [&["work", "bad", "--exec", command, "--max-jobs", "1"], &server(&broker)[..]].concat();
    ok(&once("echo it broke >&2; exit 3"), b"").await;
    let job = ok(&[&["job", id.trim(), "--json"], &server(&broker)[..]].concat(), b"").await;
    let job: Value = serde_json::from_str(&job).unwrap();
    assert_eq!(job["state"], "JOB_STATE_SCHEDULED");
    assert!(job["failures"][0]["error"].as_str().unwrap().contains("it broke"), "{job}");
    ok(&[&["enqueue", "bad", "y"], &server(&broker)[..]].concat(), b"").await;
    ok(&once("exit 65"), b"").await;
    assert_eq!(broker.count("SELECT count(*) FROM howdah.dead").await, 1);
}

#[tokio::test]
async fn wrong_arguments_exit_with_2_and_an_error_without_the_password() {
    for (args, word) in [
        (&["serve", "--database-url", "postgres://u:s3cret@h/d?sslmode=maybe"][..], "sslmode"),
        (&["serve", "--database-url", "postgres://u:s3cret@h/d", "--set", "no_such_key=1"], "no_such_key"),
        (&["enqueue", "t", "x", "--delay", "soon"], "delay"),
        (&["no-such-command"], "no-such-command"),
    ] {
        let (status, out, err) = run(args, b"").await;
        assert_eq!(status.code(), Some(2), "{args:?}: {err}");
        assert!(out.is_empty() && err.contains(word) && !err.contains("s3cret"), "{args:?}: {err}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_in_the_error() {
    let (status, _, err) = run(&["types", "--server", "127.0.0.1:1"], b"").await;
    assert!(!status.success() && err.contains("127.0.0.1:1"), "{err}");
}

#[tokio::test]
async fn a_cancelled_job_is_gone_from_the_queue_and_a_list_shows_it() {
    let broker = TestBroker::start().await;
    let id =
        ok(&[&["enqueue", "c", "x", "--priority", "5", "--header", "a=b"], &server(&broker)[..]].concat(), b"").await;
    ok(&[&["cancel", id.trim()], &server(&broker)[..]].concat(), b"").await;
    let list = ok(&[&["jobs", "c", "--state", "cancelled", "--json"], &server(&broker)[..]].concat(), b"").await;
    let job: Value = serde_json::from_str(list.lines().next().expect("a job")).unwrap();
    assert_eq!((&job["id"], &job["priority"]), (&Value::from(id.trim()), &Value::from(5)));
    let mut worker = broker.worker("c").window(1).await;
    let next = ok(&[&["enqueue", "c", "y"], &server(&broker)[..]].concat(), b"").await;
    assert_eq!(worker.next().await.id.to_string(), next.trim());
}

#[tokio::test]
async fn a_list_of_running_jobs_says_since_when_and_at_which_broker_they_run() {
    let broker = TestBroker::start_with(|config| config.name = "left".into()).await;
    broker.enqueue_all(["c"; 2]).await;
    let mut worker = broker.worker("c").window(1).await;
    let streamed = worker.next().await.id;
    let pulled = broker.pull("c").await[0].id;
    let list = ok(&[&["jobs", "c", "--state", "leased"], &server(&broker)[..]].concat(), b"").await;
    let row = |id: i64| list.lines().find(|line| line.split_whitespace().next() == Some(&id.to_string())).expect(&list);
    let heading: Vec<&str> = list.lines().next().expect("a heading").split_whitespace().collect();
    assert!(heading.starts_with(&["ID", "PRIO", "ATTEMPTS", "STARTED"]) && row(streamed).contains(" ago "), "{list}");
    assert!(row(streamed).ends_with(" left") && row(pulled).ends_with("- (pulled)"), "{list}");
}

#[tokio::test]
async fn a_role_that_may_only_use_its_schema_can_migrate_it() {
    let database = database().await;
    let admin = database.connect().await;
    let name: String = admin.query_one("SELECT current_database()", &[]).await.unwrap().get(0);
    let role = format!("owner_{name}");
    let sql = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA own AUTHORIZATION {role}");
    admin.batch_execute(&sql).await.unwrap();
    let url = database.url.replacen("howdah@", &format!("{role}@"), 1);
    ok(&["migrate", "--database-url", &url, "--set", "schema=own"], b"").await;
    assert_eq!(database.count("SELECT count(*) FROM own.ready").await, 0);
}

#[tokio::test]
async fn kill_9_of_a_worker_ends_what_its_commands_have_started() {
    let broker = TestBroker::start().await;
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    ok(&[&["enqueue", "long", ""], &server(&broker)[..]].concat(), b"").await;
    // The shell and its child process both have the FIFO open, so a read of the FIFO ends when both processes are gone.
    let command = format!("exec 3> '{}'; echo begun >&3; sleep infinity; echo over", fifo.display());
    let mut worker = Program::start(&[&["work", "long", "--exec", &command], &server(&broker)[..]].concat());
    // Opens the FIFO on a separate thread, because opening blocks until the command opens it too.
    let (opened, open) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || opened.send(std::fs::File::open(&fifo)));
    let open = with_timeout("the start of the command", open).await.unwrap().unwrap();
    let mut open = tokio::net::unix::pipe::Receiver::from_file(open).unwrap();
    worker.signal(Signal::KILL);
    worker.ended().await;
    // `read_to_string` returns when no process has the FIFO open.
    let mut text = String::new();
    with_timeout("the end of the command", open.read_to_string(&mut text)).await.unwrap();
    assert!(["", "begun\n"].contains(&&text[..]), "{text}");
}

#[tokio::test]
async fn brokers_of_two_databases_are_refused_by_name() {
    let (one, other) = (database().await, database().await);
    // Gives the second database a new identity. Test databases are copies of one template and have the same identity.
    let output = ok(&["migrate", "--new-identity", "--database-url", &other.url], b"").await;
    let (_, identity) = output.split_once("the identity of the database is now ").unwrap_or_else(|| panic!("{output}"));
    let sql = format!(
        "SELECT count(*) FROM howdah.audit WHERE method = 'howdah migrate --new-identity' AND ids = ARRAY['{}']
         AND principal = 'sql:' || session_user",
        identity.trim()
    );
    assert_eq!(other.count(&sql).await, 1, "the audit says who did it");
    let (a, b, c) = (TestBroker::on(&one).await, TestBroker::on(&one).await, TestBroker::on(&other).await);
    ok(&["types", "--server", &format!("{},{}", a.grpc, b.grpc)], b"").await;
    let (status, _, err) = run(&["types", "--server", &format!("{},{}", a.grpc, c.grpc)], b"").await;
    assert_eq!(status.code(), Some(2), "{err}");
    assert!(err.contains("another database") && err.contains(a.address()) && err.contains(c.address()), "{err}");
    // This client connects to the second database only after the broker of the first database has stopped.
    let client = howdah_client::Client::builder().endpoints([&a.grpc, &c.grpc]).connect_lazy().unwrap();
    client.enqueue(howdah_client::NewJob::new("t")).await.unwrap();
    a.stop().await;
    let error = client.enqueue(howdah_client::NewJob::new("t")).await.unwrap_err();
    assert!(error.to_string().contains("another database"), "{error}");
    assert_eq!(c.count("SELECT count(*) FROM howdah.job").await, 0);
}

#[tokio::test]
async fn brokers_of_two_databases_are_refused_although_the_first_one_names_its_database_late() {
    let (one, other) = (database().await, database().await);
    ok(&["migrate", "--new-identity", "--database-url", &other.url], b"").await;
    let (a, b) = (TestBroker::on(&one).await, TestBroker::on(&other).await);
    let lock = one.connect().await;
    // The test holds the lock for 600 ms, which is longer than a client waits for further brokers.
    let waits =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                                AND clock_timestamp() - query_start > interval '600 ms')";
    for tries in 1.. {
        lock.batch_execute("BEGIN; LOCK TABLE howdah.settings").await.expect("a lock");
        let client = howdah_client::Client::builder().endpoints([&a.grpc, &b.grpc]);
        let mut connecting = pin!(client.connect());
        let early = tokio::select! {
            () = one.until("a statement of the broker that waits for the lock", waits) => None,
            connected = &mut connecting => Some(connected),
        };
        lock.batch_execute("ROLLBACK").await.expect("no lock");
        // If the broker has already waited for the lock for 2 s, it answers before the test releases the lock. The round is
        // then repeated.
        let is_early = early.is_some();
        let connected =
            if let Some(connected) = early { connected } else { with_timeout("an error", connecting).await };
        let error = connected.expect_err("two databases");
        assert!(error.to_string().contains("another database"), "{error}");
        if !is_early {
            break;
        }
        assert!(tries < 20, "the broker never waited for the lock");
    }
}

#[tokio::test]
async fn release_takes_a_job_from_its_worker_or_says_that_no_worker_has_it() {
    let broker = TestBroker::start().await;
    let mut worker = broker.worker("hangs").window(2).await;
    let ids = broker.enqueue_all([new_job("hangs", "").retry_after_each(HOUR), new_job("hangs", "")]).await;
    worker.take(2).await;
    worker.window("hangs", 0).await;
    let [failed, released] = [ids[0].to_string(), ids[1].to_string()];
    let output = ok(&[&["release", &failed, "--fail", "it hangs"], &server(&broker)[..]].concat(), b"").await;
    assert_eq!(output, format!("{failed}\n"));
    let (status, out, err) =
        run(&[&["release", &failed, &released, "--json"], &server(&broker)[..]].concat(), b"").await;
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("1 job was not released"), "{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["released"].as_bool()).collect::<Vec<_>>(), [Some(true), Some(false)]);
    assert_eq!((broker.state(ids[0]).await, broker.state(ids[1]).await), (JobState::Scheduled, JobState::Ready));
    assert_eq!(broker.job(ids[0]).await.failures[0].error, "it hangs");
}

#[tokio::test]
async fn a_result_that_is_text_ends_with_a_newline_and_other_bytes_are_unchanged() {
    let broker = TestBroker::start().await;
    for (result, printed) in
        [(&b"HELLO"[..], &b"HELLO\n"[..]), (b"HELLO\n", b"HELLO\n"), (b"\xff\0", b"\xff\0"), (b"", b"")]
    {
        let id = broker.enqueue("upper").await;
        let jobs = broker.pull("upper").await;
        broker.settle(vec![ack(&jobs[0]).result(result.to_vec())]).await;
        let mut command = tokio::process::Command::new(howdah());
        command.args(["wait", &id.to_string(), "--result"]).args(server(&broker));
        assert_eq!(with_timeout("a result", command.output()).await.expect("output").stdout, printed);
    }
}

#[tokio::test]
async fn the_wait_for_a_job_that_fails_shows_why() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue(new_job("w", "").max_attempts(1)).await.to_string();
    ok(&[&["work", "w", "--exec", "echo it broke >&2; exit 3", "--drain"], &server(&broker)[..]].concat(), b"").await;
    let (status, out, _) = run(&[&["wait", &id], &server(&broker)[..]].concat(), b"").await;
    assert!(status.code() == Some(1) && out.contains("dead") && out.contains("it broke"), "{out}");
    let (_, out, err) = run(&[&["wait", &id, "--result"], &server(&broker)[..]].concat(), b"").await;
    assert!(out.is_empty() && err.contains("it broke"), "{err}");
}

#[tokio::test]
async fn a_wait_for_a_job_without_history_is_refused_before_and_after_the_end_of_the_job() {
    let broker = TestBroker::start().await;
    for history in ["none", "failures", "without_empty"] {
        ok(&[&["type", "set", history, "--history", history], &server(&broker)[..]].concat(), b"").await;
        let ids = broker.enqueue_all([history; 2]).await.iter().map(i64::to_string).collect::<Vec<_>>();
        ok(&[&["work", history, "--exec", "cat", "--max-jobs", "1"], &server(&broker)[..]].concat(), b"").await;
        for id in &ids {
            let (status, _, err) = run(&[&["wait", id], &server(&broker)[..]].concat(), b"").await;
            assert_eq!(status.code(), Some(1), "{history}: {err}");
        }
        let (_, _, err) = run(&[&["wait", &ids[1]], &server(&broker)[..]].concat(), b"").await;
        assert!(err.contains("does not keep every succeeded job"), "{history}: {err}");
    }
}

#[tokio::test]
async fn an_unknown_error_group_is_refused_and_a_time_without_a_zone_is_utc() {
    let broker = TestBroker::start().await;
    broker.enqueue("bad").await;
    let group = ["retry", "--type", "bad", "--error", "no such group"];
    let (status, _, err) = run(&[&group[..], &server(&broker)].concat(), b"").await;
    assert!(status.code() == Some(1) && err.contains("no such group"), "{err}");
    let client = broker.database.connect().await;
    let day: String = client.query_one("SELECT to_char(now() + '1 year', 'YYYY-MM-DD')", &[]).await.unwrap().get(0);
    ok(&[&["enqueue", "t", "--run-at", &format!("{day} 03:00")], &server(&broker)[..]].concat(), b"").await;
    let shown = format!("SELECT count(*) FROM howdah.scheduled WHERE run_at = '{day}T03:00:00Z'");
    assert_eq!(broker.count(&shown).await, 1);
}

#[tokio::test]
async fn the_http_port_tells_grpc_clients_at_once_that_it_is_the_wrong_port() {
    let broker = TestBroker::start().await;
    for command in [&["enqueue", "t", "x"][..], &["types"]] {
        let (status, _, err) = run(&[command, &["--server", &broker.http]].concat(), b"").await;
        assert!(!status.success() && err.contains("this is the HTTP port of the broker"), "{command:?}: {err}");
    }
}

#[tokio::test]
async fn health_says_whether_the_broker_is_ready_and_waits_for_it_if_asked() {
    let broker = TestBroker::start().await;
    let http = broker.http.trim_start_matches("http://").to_owned();
    assert_eq!(ok(&["health", "--http", &http, "--wait", "30s"], b"").await, stores::all_ready());
    assert_eq!(ok(&["health", "--http", &http, "--live"], b"").await, "ok\n");
    broker.stop().await;
    let (status, out, err) = run(&["health", "--http", &http], b"").await;
    assert_eq!((status.code(), out.as_str()), (Some(69), ""), "{err}");
    assert!(err.starts_with("howdah: no broker answers at http://127.0.0.1:"), "{err}");
}
