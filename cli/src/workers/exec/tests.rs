use std::{
    collections::HashMap,
    future::{pending, ready},
};

use bytes::Bytes;
use howdah_client::Outcome;
use tokio::{io::AsyncReadExt as _, sync::oneshot};

use super::{super::reports::Report, *};

/// Creates a worker that gives commands enough time to end, even on slow machines.
fn exec(command: &str) -> Exec {
    with_time(Exec::new(Program::shell(command), false, StopTokens::default()))
}

fn with_time(mut exec: Exec) -> Exec {
    exec.kill_after = Duration::from_mins(1);
    exec
}

fn attempt(payload: impl Into<Bytes>) -> Attempt {
    Attempt {
        id: 17,
        task_type: "email.send".into(),
        attempt: 2,
        max_attempts: 10,
        headers: HashMap::from([("k".into(), "v \"w\"".into())]),
        payload: payload.into(),
        tags: vec!["a".into(), "b c".into()],
        checkpoint: Bytes::from_static(b"row 7"),
        results: None,
        traceparent: String::new(),
        tracestate: String::new(),
    }
}

async fn run(command: &str, payload: impl Into<Bytes>) -> Ending {
    exec(command).run(&attempt(payload), &Reports::default(), pending()).await
}

fn done(result: &str) -> Ending {
    Ending::Done(Bytes::copy_from_slice(result.as_bytes()))
}

/// Runs the command until it has written its pid to a file, then calls `then` and waits for the end.
async fn run_until_begun(exec: Exec, file: &std::path::Path, then: impl FnOnce(oneshot::Sender<()>)) -> Ending {
    let (cancel, cancelled) = oneshot::channel();
    let job = attempt(Bytes::new());
    let reports = Reports::default();
    let running = exec.run(&job, &reports, async { drop(cancelled.await) });
    let begun = async {
        // The file is a FIFO: opening it for reading waits until the command opens it for writing.
        let text = tokio::fs::read_to_string(file).await.unwrap();
        assert_eq!(text.trim(), "begun");
        then(cancel);
        pending::<()>().await;
    };
    tokio::select! {
        ending = running => ending,
        () = begun => unreachable!(),
    }
}

/// Creates a directory with a FIFO in it.
fn fifo() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    (dir, path)
}

#[tokio::test]
async fn the_payload_is_stdin_and_stdout_is_the_result() {
    assert_eq!(run("tr a-z A-Z", "hello").await, done("HELLO"));
}

#[tokio::test]
async fn a_command_names_the_next_stage_on_descriptor_3() {
    let stage = |name: &str| Ending::Advanced("r".into(), name.into());
    let command = r#"printf r; echo '{"next_stage":"a"}' >&3; echo '{"next_stage":"mail","text":"sorted"}' >&3"#;
    let reports = Reports::default();
    assert_eq!(exec(command).run(&attempt(""), &reports, pending()).await, stage("mail"));
    assert_eq!(reports.unsent().and_then(|report| report.text), Some("sorted".into()));
    // A failed attempt does not move the job to the stage, and an invalid stage name fails the attempt.
    let failed = run(r#"echo '{"next_stage":"a"}' >&3; exit 1"#, "").await;
    assert_eq!(failed, Ending::Failed("exit status 1".into()));
    let Ending::Failed(error) = run(r#"echo '{"next_stage":"no such"}' >&3"#, "").await else { panic!("it continued") };
    assert!(error.contains("the next stage") && error.contains("no such"), "{error}");
}

#[tokio::test]
async fn the_result_is_kept_byte_by_byte() {
    let payload = Bytes::from_static(b"\0\xff\n\n");
    assert_eq!(run("cat", payload.clone()).await, Ending::Done(payload));
}

#[tokio::test]
async fn the_environment_describes_the_job() {
    let command =
        "echo $HOWDAH_JOB_ID $HOWDAH_TASK_TYPE $HOWDAH_ATTEMPT/$HOWDAH_MAX_ATTEMPTS $HOWDAH_HEADERS $HOWDAH_TAGS";
    assert_eq!(run(command, "").await, done("17 email.send 2/10 {\"k\":\"v \\\"w\\\"\"} [\"a\",\"b c\"]\n"));
}

#[tokio::test]
async fn a_command_that_ignores_a_large_payload_does_not_hang() {
    assert_eq!(run("echo done", vec![b'x'; 8 << 20]).await, done("done\n"));
}

#[tokio::test]
async fn a_large_payload_comes_back_while_it_is_still_written() {
    let payload = Bytes::from(vec![b'x'; MAX_RESULT_BYTES]);
    assert_eq!(run("cat", payload.clone()).await, Ending::Done(payload));
}

#[tokio::test]
async fn one_byte_more_than_the_largest_result_fails_for_good() {
    let ending = run("cat", vec![b'x'; MAX_RESULT_BYTES + 1]).await;
    assert!(matches!(&ending, Ending::FailedForGood(error) if error.contains("1048576 bytes")), "{ending:?}");
}

#[tokio::test]
async fn endless_output_is_stopped() {
    assert!(matches!(run("yes", "").await, Ending::FailedForGood(_)));
}

#[tokio::test]
async fn another_exit_status_is_a_failure_with_the_end_of_stderr() {
    assert_eq!(run("echo no luck >&2; exit 3", "").await, Ending::Failed("no luck (exit status 3)".into()));
    assert_eq!(run("exit 1", "").await, Ending::Failed("exit status 1".into()));
}

#[tokio::test]
async fn exit_status_65_fails_for_good() {
    let ending = run("echo bad address >&2; exit 65", "").await;
    assert_eq!(ending, Ending::FailedForGood("bad address (exit status 65)".into()));
}

#[tokio::test]
async fn a_command_that_dies_of_a_signal_is_tried_again() {
    assert_eq!(run("kill -9 $$", "").await, Ending::Failed("killed by signal 9".into()));
}

#[tokio::test]
async fn a_command_that_is_not_there_is_tried_again() {
    let ending = run("./no-such-command", "").await;
    assert!(matches!(&ending, Ending::Failed(error) if error.ends_with("(exit status 127)")), "{ending:?}");
}

#[tokio::test]
async fn only_the_last_4_kib_of_stderr_are_kept() {
    let command = "yes 'not the end' | head -n 100000 >&2; echo the end >&2; exit 1";
    let Ending::Failed(error) = run(command, "").await else { panic!() };
    assert!(error.starts_with('…') && error.ends_with("the end (exit status 1)"), "{error}");
    assert!(error.len() < ERROR_TAIL_BYTES + 100, "{}", error.len());
}

#[test]
fn the_tail_begins_with_a_whole_character() {
    let mut tail = pipes::Tail::default();
    tail.push("é".repeat(ERROR_TAIL_BYTES).as_bytes());
    tail.push(b"!");
    let text = tail.text();
    assert!(!text.contains('\u{fffd}'), "{text}");
    assert!(text.starts_with("…é") && text.ends_with("é!"));
}

#[tokio::test]
async fn background_processes_of_a_command_end_with_the_command() {
    let (_dir, fifo) = fifo();
    // Shell and background process hold the FIFO open, so the read ends when both have ended.
    let command = format!("exec 3> {}; sleep 1000 & echo done", fifo.display());
    let (ending, read) = tokio::join!(run(&command, ""), tokio::fs::read(&fifo));
    assert_eq!(ending, done("done\n"));
    assert!(read.unwrap().is_empty());
}

#[tokio::test]
async fn a_cancelled_job_is_terminated_gracefully() {
    let (dir, fifo) = fifo();
    let cleaned = dir.path().join("cleaned");
    let command = format!(
        "trap 'echo yes > {}; exit 0' TERM; echo begun > {}; while :; do sleep 0.01; done",
        cleaned.display(),
        fifo.display()
    );
    let ending = run_until_begun(exec(&command), &fifo, drop).await;
    assert_eq!(ending, Ending::Cancelled);
    assert_eq!(std::fs::read_to_string(cleaned).unwrap(), "yes\n");
}

#[tokio::test]
async fn a_child_of_the_shell_has_time_to_clean_up_too() {
    let (dir, fifo) = fifo();
    let cleaned = dir.path().join("cleaned");
    // SIGTERM ends the outer shell immediately, and the inner shell a little later.
    let command = format!(
        "sh -c 'trap \"sleep 0.2; echo yes > {}; exit 0\" TERM; echo begun > {}; while :; do sleep 0.01; done'; exit 1",
        cleaned.display(),
        fifo.display()
    );
    let ending = run_until_begun(exec(&command), &fifo, drop).await;
    assert_eq!(ending, Ending::Cancelled);
    assert_eq!(std::fs::read_to_string(cleaned).unwrap(), "yes\n");
}

#[tokio::test]
async fn a_command_that_ignores_the_polite_signal_is_killed() {
    let (_dir, fifo) = fifo();
    let mut exec = exec(&format!("trap '' TERM; echo begun > {}; while :; do sleep 1; done", fifo.display()));
    exec.kill_after = Duration::from_millis(20);
    assert_eq!(run_until_begun(exec, &fifo, drop).await, Ending::Cancelled);
}

#[tokio::test]
async fn an_immediate_stop_kills_the_command_and_releases_the_job() {
    let (_dir, fifo) = fifo();
    let stop_tokens = StopTokens::default();
    let give_up = stop_tokens.immediate.clone();
    let command = format!("trap '' TERM; echo begun > {}; while :; do sleep 1; done", fifo.display());
    let exec = Exec::new(Program::shell(command), false, stop_tokens);
    let mut kept = None;
    let ending = run_until_begun(exec, &fifo, |cancel| {
        kept = Some(cancel);
        give_up.cancel();
    });
    let ending = ending.await;
    assert_eq!(ending, Ending::Released);
    assert_eq!(ending.into_outcome(), Outcome::release());
}

#[tokio::test]
async fn after_an_immediate_stop_no_command_is_started() {
    let stop_tokens = StopTokens::default();
    stop_tokens.immediate.cancel();
    let exec = Exec::new(Program::shell("echo no"), false, stop_tokens);
    assert_eq!(exec.run(&attempt(""), &Reports::default(), ready(())).await, Ending::Released);
}

#[tokio::test]
async fn dropping_an_attempt_kills_its_command() {
    let (_dir, fifo) = fifo();
    let exec = exec(&format!("exec 3> {}; echo begun >&3; sleep 1000", fifo.display()));
    let job = attempt("");
    let reports = Reports::default();
    let mut reader = tokio::select! {
        _ = exec.run(&job, &reports, pending()) => unreachable!(),
        file = tokio::fs::File::open(&fifo) => file.unwrap(),
    };
    // The read ends when no process has the FIFO open any more.
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    assert!(text.is_empty() || text == "begun\n");
}

#[tokio::test]
async fn lines_on_descriptor_3_are_progress_and_the_last_checkpoint_is_told() {
    let reports = Reports::default();
    let command = r#"echo 50% half >&3; echo "{\"checkpoint\": \"row 8\"}" >&3; printf "last words" >&3
        echo "$HOWDAH_CHECKPOINT" | base64 -d"#;
    let ending = exec(command).run(&attempt(""), &reports, pending()).await;
    assert_eq!(ending, done("row 7"));
    let report = Report { fraction: Some(0.5), text: Some("last words".into()), checkpoint: Some("row 8".into()) };
    assert_eq!(reports.unsent(), Some(report));
}

#[tokio::test]
async fn arguments_are_passed_without_a_shell_looking_at_them() {
    let arguments = ["printf", "%s|", "$HOME", "a b", "`date`", "*", "-n"];
    let program = Program::new(arguments.iter().map(|&argument| argument.to_owned()).collect());
    let ending =
        Exec::new(program, false, StopTokens::default()).run(&attempt(""), &Reports::default(), pending()).await;
    assert_eq!(ending, done("$HOME|a b|`date`|*|-n|"));
}

#[tokio::test]
async fn only_the_variables_that_are_allowed_are_passed_in_the_directory_that_is_named() {
    // Cargo sets CARGO_PKG_NAME for every test.
    let name = "CARGO_PKG_NAME";
    let value = std::env::var(name).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let command = "echo \"$CARGO_PKG_NAME $CARGO_PKG_VERSION $HOWDAH_JOB_ID\"; pwd -P";
    let program = |names: &[&str]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Program::shell(command).with_env(Some(names)).in_dir(Some(dir.path().into()))
    };
    let path = dir.path().canonicalize().unwrap();
    for (names, expected) in [(&[name][..], value.as_str()), (&[], "")] {
        let exec = Exec::new(program(names), false, StopTokens::default());
        let ending = exec.run(&attempt(""), &Reports::default(), pending()).await;
        assert_eq!(ending, done(&format!("{expected}  17\n{}\n", path.display())));
    }
}

#[tokio::test]
async fn the_limit_of_result_bytes_can_be_lowered() {
    let exec = exec("echo 12345").with_max_result(5);
    let ending = exec.run(&attempt(""), &Reports::default(), pending()).await;
    assert!(matches!(&ending, Ending::FailedForGood(error) if error.contains("more than 5 bytes")), "{ending:?}");
}

#[tokio::test]
async fn a_worker_that_stops_terminates_gracefully_and_releases_the_job() {
    let (dir, fifo) = fifo();
    let cleaned = dir.path().join("cleaned");
    let command = format!(
        "trap 'echo yes > {}; exit 0' TERM; echo begun > {}; while :; do sleep 0.01; done",
        cleaned.display(),
        fifo.display()
    );
    let stop_tokens = StopTokens::default();
    let graceful = stop_tokens.graceful.clone();
    let mut kept = None;
    let ending = run_until_begun(with_time(Exec::new(Program::shell(command), false, stop_tokens)), &fifo, |cancel| {
        kept = Some(cancel);
        graceful.cancel();
    });
    assert_eq!(ending.await, Ending::Released);
    assert_eq!(std::fs::read_to_string(cleaned).unwrap(), "yes\n");
}
