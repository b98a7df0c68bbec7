//! Tests `howdah work`: the bundled workers, as people and scripts use them.

use std::{collections::HashMap, sync::Arc};

use howdah_proto::v1::{JobState, NewJob};
use rustix::process::Signal;

use crate::support::*;

/// Runs `howdah work` until it ends, which must succeed. Returns its standard error.
async fn work(broker: &TestBroker, args: &[&str]) -> String {
    let (status, _, errors) = run(&[&["work", "--server", &broker.grpc], args].concat(), b"").await;
    assert!(status.success(), "{args:?}: {status}: {errors}");
    errors
}

#[tokio::test]
async fn one_process_serves_many_jobs_by_lines_of_json() {
    let broker = TestBroker::start().await;
    let program = root().join("examples/lines/upper.py");
    let mut jobs: Vec<NewJob> = (0..300).map(|n| new_job("text.upper", format!("line\n {n}"))).collect();
    jobs.push(new_job("text.upper", b"\xff".to_vec()));
    let ids = broker.enqueue_all(jobs).await;
    work(
        &broker,
        &[
            "text.upper",
            "--drain",
            "--lines",
            "--jobs",
            "50",
            "--processes",
            "2",
            "--argv",
            "python3",
            program.to_str().expect("a path"),
        ],
    )
    .await;
    for (n, &id) in ids[..300].iter().enumerate() {
        let job = broker.job(id).await;
        assert_eq!((job.state(), &job.result[..]), (JobState::Succeeded, format!("LINE\n {n}").as_bytes()));
    }
    let bad = broker.job(ids[300]).await;
    assert_eq!(bad.state(), JobState::Dead);
    assert!(bad.failures[0].error.contains("can't decode byte 0xff"), "{:?}", bad.failures);
}

#[tokio::test]
async fn a_program_of_lines_chooses_the_next_stage() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("fetch").next_stages(&["parse", "index"]).await;
    let program = "import json, sys\n\
                   for line in sys.stdin:\n    \
                       job = json.loads(line)\n    \
                       print(json.dumps({'id': job['id'], 'result': 'skip', 'next_stage': 'index'}), flush=True)";
    work(&broker, &["fetch", "--max-jobs", "1", "--lines", "--argv", "python3", "-c", program]).await;
    let job = broker.job(id).await;
    assert_eq!((job.state(), &job.task_type[..], job.next_stages.len()), (JobState::Ready, "index", 0));
}

#[tokio::test]
async fn a_shell_can_serve_lines_too_as_the_documentation_says() {
    let broker = TestBroker::start().await;
    let ids = broker.enqueue_all((0..20).map(|n| new_job("log.line", format!("{n}")))).await;
    let dir = tempfile::tempdir().unwrap();
    let text = include_str!("../../docs/reference/workers.md");
    let (_, rest) = text.split_once("howdah work log.line --lines --exec '").expect("the example");
    let (command, _) = rest.split_once("'\n```").expect("its end");
    let at = dir.path().to_str().unwrap();
    work(&broker, &["log.line", "--drain", "--jobs", "5", "--dir", at, "--lines", "--exec", command]).await;
    assert_eq!(broker.state(ids[0]).await, JobState::Succeeded);
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap().lines().count(), 20);
}

#[tokio::test]
async fn a_command_gets_only_its_arguments_and_the_allowed_environment() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("show").await;
    work(&broker, &["show", "--max-jobs", "1", "--argv", "printf", "%s|", "$HOME", "--jobs", "-v"]).await;
    assert_eq!(&broker.job(id).await.result[..], b"$HOME|--jobs|-v|");
    let id = broker.enqueue("show").await;
    let args = ["work", "--server", &broker.grpc, "show", "--max-jobs", "1", "--env", "ALLOWED", "--exec", "env"];
    let mut worker = Program::start_with(&args, &[("ALLOWED", "yes"), ("HOWDAH_DATABASE_URL", "secret")]);
    assert!(worker.ended().await.success());
    let result = broker.job(id).await.result;
    let text = String::from_utf8_lossy(&result);
    assert!(text.contains("ALLOWED=yes") && text.contains("PATH=") && text.contains("HOWDAH_JOB_ID="), "{text}");
    assert!(!text.contains("secret") && !text.contains("HOME="), "{text}");
}

#[tokio::test]
async fn a_command_gets_none_of_the_credentials_of_its_worker() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("show").await;
    let args = ["work", "--server", &broker.grpc, "show", "--max-jobs", "1", "--exec", "env"];
    let secrets = [
        "HOWDAH_TOKEN",
        "HOWDAH_POST_SECRET",
        "HOWDAH_DATABASE_URL",
        "HOWDAH_DATABASE_URL_FILE",
        "HOWDAH_LISTEN_DATABASE_URL",
        "HOWDAH_AUTH_TOKEN_FILE",
        "HOWDAH_TLS_KEY",
        "PGPASSWORD",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ];
    let env: Vec<_> = secrets.map(|name| (name, "hwd_s3cret")).into_iter().chain([("OTHER", "yes")]).collect();
    assert!(Program::start_with(&args, &env).ended().await.success());
    let result = broker.job(id).await.result;
    let text = String::from_utf8_lossy(&result);
    assert!(text.contains("OTHER=yes") && text.contains("HOWDAH_JOB_ID=") && !text.contains("s3cret"), "{text}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_finds_no_credential_in_the_environment_of_its_worker_and_the_worker_has_them() {
    let broker = TestBroker::start().await;
    // Shell script that prints the environment of the worker and of all processes that it started.
    let look =
        "for p in $PPID $(cat /proc/$PPID/task/*/children); do tr '\\0' '\\n' < /proc/$p/environ; done; echo end";
    let secrets =
        [("HOWDAH_TOKEN", "hwd_s3cret"), ("HOWDAH_POST_SECRET", "s3cret"), ("PGPASSWORD", "s3cret"), ("OTHER", "yes")];
    for more in [&["--exec", look][..], &["--env", "HOWDAH_POST_SECRET", "--exec", "echo $HOWDAH_POST_SECRET"]] {
        let id = broker.enqueue("show").await;
        let args = ["work", "--server", &broker.grpc, "show", "--max-jobs", "1"];
        assert!(Program::start_with(&[&args[..], more].concat(), &secrets).ended().await.success());
        let result = broker.job(id).await.result;
        let text = String::from_utf8_lossy(&result);
        let passed = more[0] == "--env";
        assert!(text.contains("s3cret") == passed && text.contains("OTHER=yes") != passed, "{text}");
    }
}

#[tokio::test]
async fn a_command_continues_from_the_checkpoint_of_the_previous_attempt() {
    let broker = TestBroker::start().await;
    // The retry delay is long, so that the test controls when the second attempt starts.
    let id = broker.enqueue("copy").retry_after_each(10 * MINUTE).await;
    let command = r#"done=$(printf %s "$HOWDAH_CHECKPOINT" | base64 -d); echo "from ${done:-0}"
        echo "{\"fraction\": 0.5, \"text\": \"half\", \"checkpoint\": \"row 7\"}" >&3
        [ -n "$done" ] || exit 1"#;
    work(&broker, &["copy", "--max-jobs", "1", "--exec", command]).await;
    let job = broker.job(id).await;
    assert_eq!((job.state(), &job.checkpoint[..]), (JobState::Scheduled, &b"row 7"[..]));
    assert_eq!(job.progress.expect("progress").text, "half");
    broker.sql("UPDATE howdah.scheduled SET run_at = now()").await;
    work(&broker, &["copy", "--max-jobs", "1", "--exec", command]).await;
    assert_eq!(&broker.job(id).await.result[..], b"from row 7\n");
}

#[tokio::test]
async fn a_worker_ends_by_itself_after_max_age() {
    let broker = TestBroker::start().await;
    work(&broker, &["nothing", "--max-age", "10ms", "--exec", "cat"]).await;
}

#[tokio::test]
async fn a_worker_that_has_its_last_job_goes_on_with_it_at_another_broker() {
    let (a, b) = TestBroker::pair_with(|c| c.session_grace = PATIENCE).await;
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(&go).status().unwrap().success());
    let command = format!("echo begun >&3; cat {}", go.display());
    let servers = format!("{},{}", a.grpc, b.grpc);
    let mut worker = Program::start(&["work", "--server", &servers, "slow", "--max-jobs", "1", "--exec", &command]);
    a.enqueue("slow").await;
    a.until("a running command", "SELECT count(*) = 1 FROM howdah.leased WHERE options ? 'progress_text'").await;
    let of_first = "SELECT count(*) FROM howdah.leased WHERE broker_id = (SELECT min(id) FROM howdah.broker)";
    let (holder, other) = if a.count(of_first).await == 1 { (a, b) } else { (b, a) };
    holder.stop().await;
    std::fs::write(&go, "done").unwrap();
    assert!(worker.ended().await.success());
    assert_eq!(other.count("SELECT count(*) FROM howdah.history WHERE attempt = 1").await, 1);
}

#[tokio::test]
async fn a_stopping_worker_ends_its_commands_after_stop_after_and_releases_the_jobs() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("slow").await;
    let dir = tempfile::tempdir().unwrap();
    let cleaned = dir.path().join("cleaned");
    let command = format!("trap 'touch {}; exit 0' TERM; echo begun >&3; sleep infinity & wait", cleaned.display());
    let mut worker =
        Program::start(&["work", "--server", &broker.grpc, "slow", "--stop-after", "10ms", "--exec", &command]);
    broker.until("a running command", "SELECT count(*) = 1 FROM howdah.leased WHERE options ? 'progress_text'").await;
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
    assert!(cleaned.exists());
    let job = broker.job(id).await;
    assert_eq!((job.state(), job.attempt), (JobState::Ready, 0));
}

/// Starts an HTTP server that chooses its response by the request's body.
async fn webhook() -> (String, Arc<tokio::sync::Mutex<Vec<(axum::http::HeaderMap, Vec<u8>)>>>) {
    use axum::{
        Router,
        body::Bytes,
        http::{HeaderMap, StatusCode},
        routing::post,
    };
    let log = Arc::new(tokio::sync::Mutex::new(Vec::new()));
    let seen = log.clone();
    let hook = async move |headers: HeaderMap, body: Bytes| {
        let mut seen = seen.lock().await;
        seen.push((headers, body.to_vec()));
        match &body[..] {
            b"bad" => (StatusCode::UNPROCESSABLE_ENTITY, "no such customer".to_owned()),
            // The first request with the body `busy` gets a 503.
            b"busy" if seen.iter().filter(|(_, body)| body == b"busy").count() == 1 => {
                (StatusCode::SERVICE_UNAVAILABLE, "busy".into())
            }
            body => (StatusCode::OK, format!("got {}", String::from_utf8_lossy(body))),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let router = Router::new().route("/hook", post(hook));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, log)
}

#[tokio::test]
async fn jobs_are_sent_to_a_url_signed_and_its_answers_are_their_outcomes() {
    let broker = TestBroker::start().await;
    let (url, log) = webhook().await;
    let busy = new_job("hook", "busy").retry_after_each(secs(0));
    let ids = broker.enqueue_all([new_job("hook", "one"), new_job("hook", "bad"), busy]).await;
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "a secret\n").unwrap();
    let args = ["hook", "--jobs", "3", "--max-jobs", "4", "--post", &url, "--allow-private", "--secret-file"];
    let errors = work(&broker, &[&args[..], &[secret.to_str().unwrap()]].concat()).await;
    assert!(!errors.contains("a secret"), "{errors}");
    let (one, bad, busy) = (broker.job(ids[0]).await, broker.job(ids[1]).await, broker.job(ids[2]).await);
    assert_eq!((one.state(), &one.result[..]), (JobState::Succeeded, &b"got one"[..]));
    assert_eq!(bad.state(), JobState::Dead);
    assert_eq!(bad.failures[0].error, "422 Unprocessable Entity: no such customer");
    assert_eq!((busy.state(), busy.attempt), (JobState::Succeeded, 2));
    assert_eq!(busy.failures[0].error, "503 Service Unavailable: busy");
    // A Python script verifies the signature like the receiver in the reference.
    let log = log.lock().await;
    let (headers, body) = &log[0];
    let headers: HashMap<&str, &str> =
        headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    let page = include_str!("../../docs/reference/workers.md");
    let (receiver, _) = page.split_once("\n```python\n").unwrap().1.split_once("\n```").unwrap();
    let check = format!(
        "import json, sys\n{receiver}\nurl, headers, body = sys.argv[1:]\n\
         sys.exit(not is_genuine(b'a secret', 'POST', url, json.loads(headers), body.encode()))"
    );
    let (sent, body) = (serde_json::to_string(&headers).unwrap(), std::str::from_utf8(body).unwrap());
    let status = std::process::Command::new("python3").args(["-c", &check, &url, &sent, body]).status();
    assert!(status.unwrap().success());
    assert!(ids.iter().any(|id| headers["howdah-job-id"] == id.to_string()));
}

#[tokio::test]
async fn a_private_address_is_refused_without_allow_private() {
    let broker = TestBroker::start().await;
    let args = ["work", "--server", &broker.grpc, "hook", "--post", "http://127.0.0.1/"];
    let (status, _, errors) = with_timeout("the end", run(&args, b"")).await;
    assert_eq!(status.code(), Some(2));
    assert!(errors.contains("--allow-private"), "{errors}");
}

#[tokio::test]
async fn a_flag_of_another_kind_of_worker_is_refused_by_its_name() {
    let (exec, argv) = (["--exec", "true"], ["--argv", "true"]);
    let (post, sql) = (["--post", "http://127.0.0.1/"], ["--sql", "postgres://u@127.0.0.1:1/d"]);
    let of_post = ["--method=PUT", "--header=a: b", "--secret-file=x", "--allow-private"];
    let of_lines = ["--lines", "--processes=2", "--process-jobs=2", "--process-age=1s"];
    let of_programs = ["--env=A", "--dir=/", "--verbose"];
    let mut cases = Vec::new();
    for kind in [exec, argv, sql] {
        cases.extend(of_post.map(|flag| (kind, flag)));
    }
    for kind in [post, sql] {
        cases.extend(of_lines.into_iter().chain(of_programs).map(|flag| (kind, flag)));
    }
    for kind in [exec, argv, post] {
        cases.push((kind, "--name=a=postgres://u@127.0.0.1:1/d"));
    }
    cases.extend([(exec, "--timeout=1s"), (argv, "--timeout=1s"), (post, "--max-output=1")]);
    cases.extend([exec, argv].map(|kind| (kind, "--processes=2")));
    for (kind, flag) in cases {
        // The worker's command comes last, because --argv takes all following arguments.
        let args = [&["work", "t", flag, "--server", "http://127.0.0.1:1"][..], &kind].concat();
        let (status, _, errors) = run(&args, b"").await;
        let name = flag.split('=').next().unwrap();
        assert_eq!(status.code(), Some(2), "{kind:?} {flag}: {errors}");
        assert!(errors.contains(name), "{kind:?} {flag}: {errors}");
    }
    let lines = ["work", "t", "--processes=2", "--max-output=5", "--exec", "true"];
    assert_eq!(run(&lines, b"").await.0.code(), Some(2), "not ignored");
}

#[tokio::test]
async fn a_command_and_a_program_of_lines_get_the_results_of_all_dependencies_in_a_file() {
    let broker = TestBroker::start().await;
    // The second result is larger than what the broker sends with a job.
    let large = "x".repeat(100_000);
    let part = |name: &str, payload: &str| new_job("part", payload.to_owned()).local_name(name);
    let after = |task_type| NewJob { after_local: vec!["a".into(), "b".into()], ..new_job(task_type, "") };
    let ids = broker.enqueue_all([part("a", "small"), part("b", &large), after("join"), after("list")]).await;
    work(&broker, &["part", "--max-jobs", "2", "--exec", "cat"]).await;
    let command = "echo \"$HOWDAH_RESULTS\"; cat \"$HOWDAH_RESULTS\"";
    work(&broker, &["join", "--max-jobs", "1", "--env", "", "--exec", command]).await;
    let program = "import json, sys\n\
                   for line in sys.stdin:\n    \
                       job = json.loads(line)\n    \
                       with open(job['results_file']) as results:\n        \
                           print(json.dumps({'id': job['id'], 'result': 'p\\n' + results.read()}), flush=True)";
    work(&broker, &["list", "--max-jobs", "1", "--lines", "--argv", "python3", "-c", program]).await;
    let expected = [(ids[0], "small"), (ids[1], large.as_str())]
        .map(|(id, result)| format!("{{\"id\":{id},\"state\":\"succeeded\",\"result\":\"{result}\"}}"));
    for id in &ids[2..] {
        let result = broker.job(*id).await.result;
        let text = std::str::from_utf8(&result).expect("UTF-8");
        let (path, lines) = text.split_once('\n').expect("a path");
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
        assert!(!std::path::Path::new(path).exists(), "{path} was not deleted");
    }
    // Without dependencies there is no file.
    let alone = broker.enqueue("alone").await;
    work(&broker, &["alone", "--max-jobs", "1", "--exec", "echo ${HOWDAH_RESULTS-unset}"]).await;
    assert_eq!(broker.job(alone).await.result, "unset\n");
}
