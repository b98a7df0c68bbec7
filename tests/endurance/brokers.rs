//! Brokers as processes at addresses that stay: one that is restarted is where it was.

use std::{path::PathBuf, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::record::diary;
use crate::support::{howdah, soon, unused_address};

/// Short lives, so that there is much to recover.
pub(super) const QUICK: [&str; 6] =
    ["--set", "broker_lease=2s", "--set", "renew_interval=500ms", "--set", "session_grace=1s"];

/// Where one is, and its process.
pub(super) struct Broker {
    pub(super) grpc: String,
    pub(super) http: String,
    pub(super) child: Child,
    arguments: Vec<String>,
    diary: (PathBuf, String),
}

impl Broker {
    /// Starts one on a database, or on several with names (`NAME=URL`), and waits until it is ready.
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

    /// Starts it again where it was; it is ready later.
    pub(super) fn restart(&mut self) {
        self.child = spawn(&self.arguments, &self.diary);
    }

    /// Waits for its ready line, if nobody has yet.
    pub(super) async fn ready(&mut self) {
        assert!(self.is_ready().await, "{} did not start: see {}", self.diary.1, self.diary.0.display());
    }

    /// The same, with as many starts as it takes: it gives up when it does not find Postgres.
    pub(super) async fn revive(&mut self) {
        while !self.is_ready().await {
            soon("the end of a broker", self.child.wait()).await.expect("wait");
            self.restart();
        }
    }

    /// Whether it has been ready; if nobody knows yet, whether it will be.
    async fn is_ready(&mut self) -> bool {
        let Some(stdout) = self.child.stdout.as_mut() else { return true };
        let line = soon("a ready broker", BufReader::new(stdout).lines().next_line()).await.expect("read");
        if line.is_some() {
            self.child.stdout = None;
        }
        line.is_some()
    }

    pub(super) fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// `kill -9`, and its end.
    pub(super) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        soon("the end of a broker", self.child.wait()).await.expect("wait");
    }

    /// SIGTERM; how it ended, or nothing if it took longer than that.
    pub(super) async fn stop(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        self.signal(Signal::TERM);
        Some(timeout(limit, self.child.wait()).await.ok()?.expect("wait"))
    }
}

/// A signal to a process that we started.
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
