use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command};

use super::super::postmaster::Postmaster;
use super::super::user::{self, User};
use super::super::{Binaries, Cluster, DevError, StopMode};
use super::{dead_pid, guard, open_dir, persistent, query};

/// Creates and stops a cluster; returns its programs.
async fn stopped(data: &Path) -> Binaries {
    Cluster::start(persistent(data)).await.unwrap().binaries().clone()
}

/// A process of the user that Postgres runs as. Postgres treats the pid of any other user's process as stale.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        user::run_as(command.arg("600"), User::for_new_files().unwrap().as_ref());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn leave_pid_file(data: &Path, pid: u32) {
    let path = data.join("postmaster.pid");
    fs::write(&path, format!("{pid}\n{}\n1700000000\n5432\n/tmp\n\n  1 2\nready   \n", data.display())).unwrap();
    user::give(&path, User::for_new_files().unwrap().as_ref()).unwrap();
}

#[tokio::test]
async fn the_pid_file_of_a_dead_postmaster_is_no_hindrance() {
    let base = open_dir();
    let data = base.path().join("data");
    stopped(&data).await;
    leave_pid_file(&data, dead_pid());
    Cluster::start(persistent(&data)).await.unwrap();
}

#[tokio::test]
async fn a_pid_that_is_another_process_by_now_is_no_hindrance() {
    let base = open_dir();
    let data = base.path().join("data");
    stopped(&data).await;
    let sleeper = Sleeper::new();
    leave_pid_file(&data, sleeper.0.id());
    let cluster = Cluster::start(persistent(&data)).await.unwrap();
    assert_eq!(query(&cluster, "SELECT 'up'").await, "up");
}

#[tokio::test]
async fn a_second_start_names_the_pid_of_the_first() {
    let base = open_dir();
    let data = base.path().join("data");
    let first = Cluster::start(persistent(&data)).await.unwrap();
    let error = Cluster::start(persistent(&data)).await.unwrap_err();
    assert!(matches!(error, DevError::AlreadyInUse { .. }), "{error}");
    assert!(error.to_string().contains(&format!("in use by pid {}:", first.pid())), "{error}");
    assert_eq!(query(&first, "SELECT 'up'").await, "up");
}

#[tokio::test]
async fn one_of_two_concurrent_starts_gets_the_data_directory() {
    let base = open_dir();
    let data = base.path().join("data");
    let (one, other) = tokio::join!(Cluster::start(persistent(&data)), Cluster::start(persistent(&data)));
    let (cluster, error) = match (one, other) {
        (Ok(cluster), Err(error)) | (Err(error), Ok(cluster)) => (cluster, error),
        both => panic!("{both:?}"),
    };
    assert!(matches!(error, DevError::AlreadyInUse { .. }), "{error}");
    assert_eq!(query(&cluster, "SELECT 'up'").await, "up");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1, "half a cluster is left over");
}

#[tokio::test]
async fn a_server_that_another_program_started_is_left_alone() {
    let base = open_dir();
    let data = base.path().join("data");
    let postgres = stopped(&data).await.program("postgres");
    let sockets = open_dir();
    let owner = User::owner_of(&data).unwrap();
    user::give(sockets.path(), owner.as_ref()).unwrap();
    let arguments = ["-D".into(), data.clone().into(), "-k".into(), sockets.path().into()];
    let mut command = super::super::guard::command(&guard(), StopMode::Fast, &postgres, &arguments);
    let (log, stderr) = std::io::pipe().unwrap();
    user::run_as(command.args(["-c", "listen_addresses="]).stderr(stderr), owner.as_ref());
    let theirs = Postmaster::spawn(command, StopMode::Fast).unwrap();
    let mut lines = BufReader::new(log).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("ready to accept connections")), "it ended");

    let error = Cluster::start(persistent(&data)).await.unwrap_err();
    assert!(error.to_string().contains(&format!("in use by pid {}:", theirs.pid())), "{error}");
    assert!(theirs.exit_status().is_none());
}
