//! The Python examples, with what grpcio-tools generates from the protocol: any language will do.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
};

use crate::support::*;

#[tokio::test]
async fn a_python_worker_does_the_jobs_of_a_python_producer_and_ends_well_at_sigterm() {
    let Some(python) = Python::find().await else { return };
    let broker = TestBroker::start().await;
    let numbers: Vec<String> = (1..=100).map(|n| n.to_string()).collect();
    let ids = python.produce(&broker.grpc, &["number.square"], &numbers.join("\n")).await;
    assert_eq!(ids.len(), 100);
    let mut worker = python.work(&broker.grpc, &["number.square", "8"]);
    let squared = "SELECT count(*) = 100 FROM howdah.job WHERE state = 'succeeded' AND attempt = 1
                   AND convert_from(result, 'UTF8')::numeric = convert_from(payload, 'UTF8')::numeric ^ 2";
    broker.until("a hundred squares in history", squared).await;
    let acked = broker.count("SELECT count(DISTINCT id) FROM howdah.history WHERE outcome = 'succeeded'").await;
    assert_eq!(acked, 100);
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
    assert_eq!(broker.count("SELECT count(*) FROM howdah.leased").await, 0);
}

#[tokio::test]
async fn an_exception_of_a_python_handler_fails_the_attempt_and_is_kept() {
    let Some(python) = Python::find().await else { return };
    // The next attempt is far away: we see what is left of the first.
    let broker = TestBroker::start_with(|config| config.retry.initial = HOUR).await;
    let ids = python.produce(&broker.grpc, &["number.square", "elephant"], "").await;
    assert_eq!(ids.len(), 1);
    let _worker = python.work(&broker.grpc, &["number.square"]);
    let failed = "SELECT count(*) = 1 FROM howdah.job WHERE state = 'scheduled' AND attempt = 1
                  AND failures -> 0 ->> 'error' LIKE 'ValueError(%elephant%'";
    broker.until("a failed attempt", failed).await;
}

#[tokio::test]
async fn a_python_worker_goes_on_at_the_other_broker_when_its_own_stops() {
    let Some(python) = Python::find().await else { return };
    let database = database().await;
    let (a, b) = (TestBroker::on(&database).await, TestBroker::on(&database).await);
    let mut worker = python.work(&format!("{},{}", a.grpc, b.grpc), &["number.square"]);
    python.produce(&a.grpc, &["number.square", "3"], "").await;
    until(&database, "the first result", "SELECT count(*) = 1 FROM howdah.history").await;
    // Drains: the worker must leave by itself for this to end.
    a.stop().await;
    python.produce(&b.grpc, &["number.square", "5"], "").await;
    until(&database, "the second result", "SELECT count(*) = 2 FROM howdah.history").await;
    assert_eq!(
        database.count("SELECT count(*) FROM howdah.history WHERE outcome = 'succeeded' AND attempt = 1").await,
        2
    );
    worker.signal(Signal::TERM);
    assert!(worker.ended().await.success());
}

/// A python3 with grpcio, and the generated stubs.
struct Python {
    program: PathBuf,
    stubs: TempDir,
}

impl Python {
    /// `HOWDAH_PYTHON`, or one of our own; `None` if there is no Python, or the tests are told to do without.
    async fn find() -> Option<Self> {
        if !has_language("python3", "HOWDAH_SKIP_PYTHON") {
            return None;
        }
        let program = match env::var_os("HOWDAH_PYTHON").filter(|value| !value.is_empty()) {
            Some(program) => program.into(),
            None => tokio::task::spawn_blocking(virtual_environment).await.expect("a Python with grpcio"),
        };
        let stubs = tempfile::tempdir().expect("a directory");
        let mut generate = std::process::Command::new(examples().join("generate.sh"));
        succeed("generating the stubs", generate.arg(stubs.path()).env("PYTHON", &program));
        Some(Self { program, stubs })
    }

    /// Runs the producer to its end; the ids that it prints.
    async fn produce(&self, server: &str, args: &[&str], stdin: &str) -> Vec<i64> {
        let mut command = self.command("producer.py", server, args);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start python");
        let mut input = child.stdin.take().expect("stdin");
        // A producer that got its payloads as arguments does not read.
        let _ = input.write_all(stdin.as_bytes()).await;
        drop(input);
        let output = soon("the end of the producer", child.wait_with_output()).await.expect("output");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let ids = String::from_utf8(output.stdout).expect("text");
        ids.lines().map(|id| id.parse().expect("an id")).collect()
    }

    /// Starts the worker; killed when dropped.
    fn work(&self, server: &str, args: &[&str]) -> Program {
        let mut command = self.command("worker.py", server, args);
        if env::var_os("HOWDAH_TEST_LOGS").is_none() {
            command.stderr(Stdio::null());
        }
        let mut child = command.stdin(Stdio::null()).spawn().expect("start python");
        let stdout = BufReader::new(child.stdout.take().expect("stdout")).lines();
        Program { child, stdout }
    }

    fn command(&self, program: &str, server: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(examples().join(program)).args(args).kill_on_drop(true).stdout(Stdio::piped());
        command
            .env("HOWDAH_SERVER", server.replace("http://", ""))
            .env("PYTHONPATH", self.stubs.path())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        // Proxies are for the world outside.
        command.env("no_grpc_proxy", "*");
        command
    }
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/python")
}

/// A virtual environment under `target/`, made once: its python.
fn virtual_environment() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(target).expect("target/tmp");
    // Tests of other processes wait here, too.
    let lock = fs::File::create(target.join("python.lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let (directory, requirements) = (target.join("python"), examples().join("requirements.txt"));
    let (program, installed) = (directory.join("bin/python"), directory.join("installed.txt"));
    let wanted = fs::read(&requirements).expect("requirements.txt");
    if fs::read(&installed).is_ok_and(|found| found == wanted) {
        return program;
    }
    let _ = fs::remove_dir_all(&directory);
    let mut make = std::process::Command::new("python3");
    succeed("python3 -m venv", make.args(["-m", "venv"]).arg(&directory));
    let mut install = std::process::Command::new(&program);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&requirements);
    succeed("pip install -r examples/python/requirements.txt", &mut install);
    fs::write(installed, wanted).expect("installed.txt");
    program
}

fn succeed(what: &str, command: &mut std::process::Command) {
    const HELP: &str = "The tests of the Python examples need python3 with venv (Debian: apt-get install python3-venv) \
                        and a package index that pip can reach. HOWDAH_PYTHON names a python that has grpcio and \
                        grpcio-tools already; HOWDAH_SKIP_PYTHON=1 leaves these tests out.";
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{what} failed: {}\n{HELP}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => panic!("{what} failed: {error}\n{HELP}"),
    }
}
