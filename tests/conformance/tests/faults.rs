//! Tests the conformance suite itself: the Rust client fails a scenario with a deliberate fault, and passes it without the
//! fault.
//!
//! The faults are in the adapter of the Rust client, `conformance/rust/faults.rs`.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    env,
    path::PathBuf,
    process::{Command, Output},
    sync::LazyLock,
};

/// Path of the `howdah` program for the brokers: `HOWDAH_BIN`, or else a program that is built once.
fn howdah() -> PathBuf {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| env::var_os("HOWDAH_BIN").map_or_else(build, PathBuf::from));
    PROGRAM.clone()
}

/// Builds `howdah`, because Cargo builds the programs of other packages only for those packages' own tests.
fn build() -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Builds the packages and features that `just test` builds, to reuse its results.
    cargo.args(["build", "--workspace", "--features", "archive", "--bin", "howdah", "--quiet"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).status().expect("cargo");
    assert!(status.success(), "howdah cannot be built; set HOWDAH_BIN to an existing program");
    let program = PathBuf::from(env!("CARGO_BIN_EXE_howdah-conformance")).with_file_name("howdah");
    assert!(program.exists(), "{} does not exist; set HOWDAH_BIN to an existing program", program.display());
    program
}

/// Arguments for a short step timeout, because the runner notices some faults only when an expected message or event does not
/// come in time.
const SHORT: &[&str] = &["--step-timeout-ms", "8000"];

fn run(fault: &str, scenarios: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_howdah-conformance"));
    command.args(["--client", env!("CARGO_BIN_EXE_howdah-conformance-rust"), "--lanes", "3"]).args(arguments);
    command.args(scenarios.iter().flat_map(|name| ["--scenario", name]));
    command.arg("--howdah").arg(howdah()).env("HOWDAH_CONFORMANCE_FAULT", fault).output().expect("the runner")
}

/// Asserts that the scenario fails with this fault, and that the output contains this reason.
fn fails(fault: &str, scenario: &str, reason: &str) {
    let output = run(fault, &[scenario], SHORT);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains(&format!("FAILED  {scenario} ")) && stdout.contains(reason), "{stdout}");
    assert!(stdout.lines().last().is_some_and(|last| last.ends_with("1 failed, 0 excused")), "{stdout}");
}

#[test]
fn a_client_without_a_fault_passes() {
    let scenarios =
        ["outcomes/ok", "resume/at_the_other_broker", "cancel/cancelled", "windows/concurrency", "access/token"];
    let output = run("", &scenarios, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_client_that_settles_twice_fails() {
    fails("settles_twice", "windows/order", "an outcome was sent on a stream and by a call");
}

#[test]
fn a_client_with_a_message_for_each_outcome_fails() {
    fails("settles_one_by_one", "outcomes/in_batches", r#"expected {"$le":20} messages"#);
}

#[test]
fn a_client_that_forgets_to_resume_fails() {
    fails("forgets_to_resume", "resume/at_the_other_broker", "session_id");
}

#[test]
fn a_client_that_ignores_cancel_fails() {
    fails("ignores_cancel", "cancel/cancelled", "expected an event");
}

#[test]
fn a_client_that_drops_its_window_fails() {
    fails("drops_its_window", "windows/concurrency", "expected an event");
}

#[test]
fn a_client_with_tokens_in_its_log_fails() {
    fails("leaks_tokens", "access/token", "a token is in the log");
}
