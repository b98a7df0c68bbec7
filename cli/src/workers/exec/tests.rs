use std::{collections::HashMap, future::pending, path::Path, time::Duration};

use bytes::Bytes;
use howdah_client::{NewJob, proto::CancelReason, testing};

use super::*;
use crate::workers::{
    attempt::{MAX_RESULT_BYTES, StopTokens},
    process::ERROR_TAIL_BYTES,
};

/// Creates a worker that gives commands enough time to end, even on slow machines.
fn exec(command: &str) -> Exec {
    with_program(Program::shell(command))
}

fn with_program(program: Program) -> Exec {
    Exec { program: Program { kill_after: Duration::from_mins(1), ..program }, max_result: MAX_RESULT_BYTES }
}

async fn attempt(payload: impl Into<Bytes>) -> Attempt {
    let mut attempt = Attempt::with_payload(payload).await;
    attempt.job.headers = HashMap::from([("k".into(), "v \"w\"".into())]);
    attempt.job.tags = vec!["a".into(), "b c".into()];
    attempt
}

async fn run(command: &str, payload: impl Into<Bytes>) -> Outcome {
    exec(command).run(&attempt(payload).await).await
}

fn done(result: &str) -> Outcome {
    Outcome::ack(result.to_owned())
}

/// Runs the command until it has written to a file, then calls `stop` and waits for the end.
async fn run_until_begun(exec: Exec, file: &Path, stop: impl FnOnce(&StopTokens)) -> Outcome {
    let attempt = attempt("").await;
    let begun = async {
        // The file is a FIFO: opening it for reading waits until the command opens it for writing.
        let text = tokio::fs::read_to_string(file).await.unwrap();
        assert_eq!(text.trim(), "begun");
        stop(&attempt.stop);
        pending::<()>().await;
    };
    tokio::select! {
        outcome = exec.run(&attempt) => outcome,
        () = begun => unreachable!(),
    }
}

fn gracefully(stop: &StopTokens) {
    stop.graceful.cancel();
}

/// Returns the error of a failed attempt that is retried by the retry policy.
fn retried(outcome: Outcome) -> String {
    match outcome {
        Outcome::Retry { error, after: None, .. } => error,
        other => panic!("{other:?}"),
    }
}

/// Returns the error of an attempt that failed for good.
fn failed_for_good(outcome: Outcome) -> String {
    match outcome {
        Outcome::Fail { error, .. } => error,
        other => panic!("{other:?}"),
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
    let command = r#"printf r; echo '{"next_stage":"a"}' >&3; echo '{"next_stage":"mail","text":"sorted"}' >&3"#;
    let job = attempt("").await;
    assert_eq!(exec(command).run(&job).await, Outcome::advance("r", "mail"));
    assert_eq!(job.reports.unsent().and_then(|report| report.text), Some("sorted".into()));
    // A failed attempt does not move the job to the stage, and an invalid stage name fails the attempt.
    let failed = run(r#"echo '{"next_stage":"a"}' >&3; exit 1"#, "").await;
    assert_eq!(failed, Outcome::retry("exit status 1"));
    let error = retried(run(r#"echo '{"next_stage":"no such"}' >&3"#, "").await);
    assert!(error.contains("the next stage") && error.contains("no such"), "{error}");
}

#[tokio::test]
async fn the_result_is_kept_byte_by_byte() {
    let payload = Bytes::from_static(b"\0\xff\n\n");
    assert_eq!(run("cat", payload.clone()).await, Outcome::ack(payload));
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
    assert_eq!(run("cat", payload.clone()).await, Outcome::ack(payload));
}

#[tokio::test]
async fn one_byte_more_than_the_largest_result_fails_for_good() {
    let error = failed_for_good(run("cat", vec![b'x'; MAX_RESULT_BYTES + 1]).await);
    assert!(error.contains("1048576 bytes"), "{error}");
}

#[tokio::test]
async fn endless_output_is_stopped() {
    failed_for_good(run("yes", "").await);
}

#[tokio::test]
async fn another_exit_status_is_a_failure_with_the_end_of_stderr() {
    assert_eq!(run("echo no luck >&2; exit 3", "").await, Outcome::retry("no luck (exit status 3)"));
    assert_eq!(run("exit 1", "").await, Outcome::retry("exit status 1"));
}

#[tokio::test]
async fn exit_status_65_fails_for_good() {
    let outcome = run("echo bad address >&2; exit 65", "").await;
    assert_eq!(outcome, Outcome::fail("bad address (exit status 65)"));
}

#[tokio::test]
async fn a_command_that_dies_of_a_signal_is_tried_again() {
    assert_eq!(run("kill -9 $$", "").await, Outcome::retry("killed by signal 9"));
}

#[tokio::test]
async fn a_command_that_is_not_there_is_tried_again() {
    let error = retried(run("./no-such-command", "").await);
    assert!(error.ends_with("(exit status 127)"), "{error}");
}

#[tokio::test]
async fn only_the_last_4_kib_of_stderr_are_kept() {
    let command = "yes 'not the end' | head -n 100000 >&2; echo the end >&2; exit 1";
    let error = retried(run(command, "").await);
    assert!(error.starts_with('…') && error.ends_with("the end (exit status 1)"), "{error}");
    assert!(error.len() < ERROR_TAIL_BYTES + 100, "{}", error.len());
}

#[tokio::test]
async fn background_processes_of_a_command_end_with_the_command() {
    let (_dir, fifo) = fifo();
    // Shell and background process hold the FIFO open, so the read ends when both have ended.
    let command = format!("exec 3> {}; sleep 1000 & echo done", fifo.display());
    let (outcome, read) = tokio::join!(run(&command, ""), tokio::fs::read(&fifo));
    assert_eq!(outcome, done("done\n"));
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
    let outcome = run_until_begun(exec(&command), &fifo, gracefully).await;
    assert_eq!(outcome, Outcome::release());
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
    let outcome = run_until_begun(exec(&command), &fifo, gracefully).await;
    assert_eq!(outcome, Outcome::release());
    assert_eq!(std::fs::read_to_string(cleaned).unwrap(), "yes\n");
}

#[tokio::test]
async fn a_command_that_ignores_the_polite_signal_is_killed() {
    let (_dir, fifo) = fifo();
    let mut exec = exec(&format!("trap '' TERM; echo begun > {}; while :; do sleep 1; done", fifo.display()));
    exec.program.kill_after = Duration::from_millis(20);
    assert_eq!(run_until_begun(exec, &fifo, gracefully).await, Outcome::release());
}

#[tokio::test]
async fn an_immediate_stop_kills_the_command_and_releases_the_job() {
    let (_dir, fifo) = fifo();
    let exec = exec(&format!("trap '' TERM; echo begun > {}; while :; do sleep 1; done", fifo.display()));
    assert_eq!(run_until_begun(exec, &fifo, |stop| stop.immediate.cancel()).await, Outcome::release());
}

#[tokio::test]
async fn after_an_immediate_stop_no_command_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let attempt = attempt("").await;
    attempt.stop.immediate.cancel();
    let outcome = exec(&format!("echo yes > {}", started.display())).run(&attempt).await;
    assert_eq!((outcome, started.exists()), (Outcome::release(), false));
}

#[tokio::test]
async fn a_cancelled_job_ends_its_command() {
    let job = testing::Attempt::new(NewJob::new("t")).cancelled(CancelReason::Timeout);
    let attempt = Attempt::of(job).await;
    assert_eq!(exec("sleep 1000").run(&attempt).await, Outcome::release());
}

#[tokio::test]
async fn dropping_an_attempt_kills_its_command() {
    let (_dir, fifo) = fifo();
    let exec = exec(&format!("exec 3> {}; echo begun >&3; sleep 1000", fifo.display()));
    let attempt = attempt("").await;
    let mut reader = tokio::select! {
        _ = exec.run(&attempt) => unreachable!(),
        file = tokio::fs::File::open(&fifo) => file.unwrap(),
    };
    // The read ends when no process has the FIFO open any more.
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    assert!(text.is_empty() || text == "begun\n");
}

#[tokio::test]
async fn lines_on_descriptor_3_are_progress_and_the_last_checkpoint_is_told() {
    let command = r#"echo 50% half >&3; echo "{\"checkpoint\": \"row 8\"}" >&3; printf "last words" >&3
        echo "$HOWDAH_CHECKPOINT" | base64 -d"#;
    let attempt = attempt("").await;
    assert_eq!(exec(command).run(&attempt).await, done("row 7"));
    let report = attempt.reports.unsent().unwrap();
    assert_eq!((report.fraction, report.text.as_deref()), (Some(0.5), Some("last words")));
    assert_eq!(report.checkpoint, Some("row 8".into()));
}

#[tokio::test]
async fn arguments_are_passed_without_a_shell_looking_at_them() {
    let arguments = ["printf", "%s|", "$HOME", "a b", "`date`", "*", "-n"];
    let program = Program::new(arguments.iter().map(|&argument| argument.to_owned()).collect());
    let outcome = with_program(program).run(&attempt("").await).await;
    assert_eq!(outcome, done("$HOME|a b|`date`|*|-n|"));
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
        Program { env: Some(names), dir: Some(dir.path().into()), ..Program::shell(command) }
    };
    let path = dir.path().canonicalize().unwrap();
    for (names, expected) in [(&[name][..], value.as_str()), (&[], "")] {
        let outcome = with_program(program(names)).run(&attempt("").await).await;
        assert_eq!(outcome, done(&format!("{expected}  17\n{}\n", path.display())));
    }
}

#[tokio::test]
async fn the_limit_of_result_bytes_can_be_lowered() {
    let exec = Exec { max_result: 5, ..exec("echo 12345") };
    let error = failed_for_good(exec.run(&attempt("").await).await);
    assert!(error.contains("more than 5 bytes"), "{error}");
}
