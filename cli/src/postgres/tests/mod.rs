//! The tests start real clusters. Their guard is this test program itself: see [`guard`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // tests fail by panicking

mod binaries;
mod cluster;
mod dirs;
mod fetch;
mod init;
mod parent;
mod sharing;
mod user;

use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::{Cluster, ClusterConfig, GUARD_COMMAND, run_if_guard};

/// Acts as the guard if this test program was started by the script of [`guard`]; otherwise does nothing.
#[test]
fn plays_the_guard() {
    let ours: Vec<OsString> = env::args_os().skip_while(|arg| arg != GUARD_COMMAND).collect();
    let args = ["howdah".into()].into_iter().chain(ours);
    if let Some(error) = run_if_guard(args) {
        panic!("{error}");
    }
}

/// A program with the hidden command: a script that runs this test program with only the test [`plays_the_guard`].
fn guard() -> PathBuf {
    static SCRIPT: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let program = env::current_exe().unwrap();
        let path = program.with_extension("guard");
        let test = format!("{}::plays_the_guard", module_path!().split_once("::").unwrap().1);
        // Write to a temporary name first, because other processes of this test may be using the script.
        let new = program.with_extension(std::process::id().to_string());
        script(&new, &format!("exec '{}' --exact {test} --nocapture -- \"$@\"", program.display()));
        fs::rename(new, &path).unwrap();
        path
    };
    SCRIPT.get_or_init(make).clone()
}

/// Writes an executable script. A shell writes it, because a child forked meanwhile would inherit an open file of this process and
/// cause the error "text file busy".
fn script(path: &Path, text: &str) {
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$2\" && chmod 755 \"$2\"";
    let status = Command::new("sh").args(["-c", write, "sh", text]).arg(path).status();
    assert!(status.unwrap().success());
}

/// A temporary directory that the user of Postgres can enter.
fn open_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// The pid of a process that has ended.
fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

fn throw_away() -> ClusterConfig {
    ClusterConfig { fsync: false, howdah_binary: Some(guard()), ..ClusterConfig::default() }
}

fn persistent(data_dir: &Path) -> ClusterConfig {
    ClusterConfig { data_dir: Some(data_dir.to_owned()), ..throw_away() }
}

/// Runs a query and returns its only value as text.
async fn query(cluster: &Cluster, sql: &str) -> String {
    let (client, connection) = tokio_postgres::connect(&cluster.url("postgres"), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.query_one(sql, &[]).await.unwrap().get(0)
}
