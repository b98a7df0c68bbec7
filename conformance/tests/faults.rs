//! A client with a fault fails the suite; the Rust client without one passes the same scenarios.
//!
//! The faults are planted in the adapter of the Rust client: `conformance/rust/faults.rs`.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    env,
    path::PathBuf,
    process::{Command, Output},
    sync::LazyLock,
};

/// The program of the brokers: `HOWDAH_BIN`, or else built once, beside the tests' own programs.
fn howdah() -> PathBuf {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| env::var_os("HOWDAH_BIN").map_or_else(build, PathBuf::from));
    PROGRAM.clone()
}

/// Cargo builds the programs of a package only for its own tests.
fn build() -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The selection and features of `just test`, so that nothing is built a second time.
    cargo.args(["build", "--workspace", "--features", "archive", "--bin", "howdah", "--quiet"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).status().expect("cargo");
    assert!(status.success(), "howdah cannot be built; name one by HOWDAH_BIN");
    let program = PathBuf::from(env!("CARGO_BIN_EXE_howdah-conformance")).with_file_name("howdah");
    assert!(program.exists(), "no {}: name another one by HOWDAH_BIN", program.display());
    program
}

/// The runner notices some faults only because nothing comes. It waits for as long as this says.
const SHORT: &[&str] = &["--patience-ms", "15000"];

fn run(fault: &str, scenarios: &[&str], patience: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_howdah-conformance"));
    command.args(["--client", env!("CARGO_BIN_EXE_howdah-conformance-rust"), "--lanes", "3"]).args(patience);
    command.args(scenarios.iter().flat_map(|name| ["--scenario", name]));
    command.arg("--howdah").arg(howdah()).env("HOWDAH_CONFORMANCE_FAULT", fault).output().expect("the runner")
}

/// The scenario fails with this fault, for this reason.
fn fails(fault: &str, scenario: &str, reason: &str, patience: &[&str]) {
    let output = run(fault, &[scenario], patience);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("FAILED  {scenario} ")) && said.contains(reason), "{said}");
    assert!(said.lines().last().is_some_and(|last| last.ends_with("1 failed, 0 excused")), "{said}");
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
    fails("settles_twice", "windows/order", "an outcome was sent on a stream and by a call", &[]);
}

#[test]
fn a_client_with_a_message_for_each_outcome_fails() {
    fails("settles_one_by_one", "outcomes/in_batches", r#"expected {"$le":20} messages"#, &[]);
}

#[test]
fn a_client_that_forgets_to_resume_fails() {
    fails("forgets_to_resume", "resume/at_the_other_broker", "session_id", SHORT);
}

#[test]
fn a_client_that_ignores_cancel_fails() {
    fails("ignores_cancel", "cancel/cancelled", "expected an event", SHORT);
}

#[test]
fn a_client_that_drops_its_window_fails() {
    fails("drops_its_window", "windows/concurrency", "expected an event", SHORT);
}

#[test]
fn a_client_with_tokens_in_its_log_fails() {
    fails("leaks_tokens", "access/token", "a token is in the log", &[]);
}
