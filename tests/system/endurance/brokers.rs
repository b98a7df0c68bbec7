//! Broker processes at fixed addresses, which stay the same after a restart.

use std::{path::PathBuf, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::record::diary;
use crate::support::{howdah, unused_address, with_timeout};

/// Settings with short lease, grace and liveness times, so that brokers rescue and release jobs soon after each fault.
pub(super) const QUICK: [&str; 8] =
    ["--set", "broker_lease=2s", "--set", "renew_interval=500ms", "--set", "session_grace=1s", "--set", "liveness=10s"];

/// The addresses of a broker and its process.
pub(super) struct Broker {
    pub(super) grpc: String,
    pub(super) http: String,
    pub(super) child: Child,
    arguments: Vec<String>,
    diary: (PathBuf, String),
}

impl Broker {
    /// Starts a broker on one database, or on several named ones (`NAME=URL`), and waits until it is ready.
    pub(super) async fn start(urls: &[String], more: &[&str], records: &std::path::Path, name: &str) -> Self {
        let [grpc, http] = [(); 2].map(|()| unused_address().to_string());
        let mut arguments = ["serve", "--listen", &grpc, "--http", &http, "--name", name].map(str::to_owned).to_vec();
        let flag = if urls.len() == 1 { "--database-url" } else { "--store" };
        arguments.extend(urls.iter().flat_map(|url| [flag.to_owned(), url.clone()]));
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let diary = (records.to_owned(), name.to_owned());
        let child = spawn(&arguments, &diary);
        let mut broker = Self { grpc, http, child, arguments, diary };
        broker.ready().await;
        broker
    }

    /// Starts the broker again at the same addresses, without waiting until it is ready.
    pub(super) fn restart(&mut self) {
        self.child = spawn(&self.arguments, &self.diary);
    }

    /// Waits for the broker's `ready` line, unless it was read already. Fails if the broker exits first.
    pub(super) async fn ready(&mut self) {
        assert!(self.is_ready().await, "{} did not start: see {}", self.diary.1, self.diary.0.display());
    }

    /// Waits until the broker is ready. Restarts it whenever it exits, because a broker exits if it cannot reach Postgres at
    /// its start.
    pub(super) async fn revive(&mut self) {
        while !self.is_ready().await {
            with_timeout("the end of a broker", self.child.wait()).await.expect("wait");
            self.restart();
        }
    }

    /// Reads the broker's `ready` line, unless it was read already. Returns false if the broker exited before it was
    /// ready.
    async fn is_ready(&mut self) -> bool {
        let Some(stdout) = self.child.stdout.as_mut() else { return true };
        let line = with_timeout("a ready broker", BufReader::new(stdout).lines().next_line()).await.expect("read");
        if line.is_some() {
            self.child.stdout = None;
        }
        line.is_some()
    }

    pub(super) fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub(super) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        with_timeout("the end of a broker", self.child.wait()).await.expect("wait");
    }

    /// Sends SIGTERM and returns the exit status; `None` if the process still runs after `limit`.
    pub(super) async fn stop(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        self.signal(Signal::TERM);
        Some(timeout(limit, self.child.wait()).await.ok()?.expect("wait"))
    }
}

/// Sends a signal to a child process.
pub(super) fn send_signal(child: &Child, signal: Signal) {
    let pid = child.id().expect("it runs") as i32;
    let pid = rustix::process::Pid::from_raw(pid).expect("pid");
    rustix::process::kill_process(pid, signal).expect("kill");
}

fn spawn(arguments: &[String], (records, name): &(PathBuf, String)) -> Child {
    let mut command = Command::new(howdah());
    command.args(arguments).kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(diary(records, name)).env("HOWDAH_LOG_FORMAT", "text").spawn().expect("start howdah")
}
