//! Tests an archive in a bucket whose server refuses requests, is slow, loses responses, cuts connections or stores wrong
//! bytes.

use std::process::Stdio;

use howdah_engine::archive::Step;
use howdah_proto::v1::GetJobRequest;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::Setting;
use crate::{
    hostile::http::ask,
    support::{python::environment, *},
};

/// An object-store server; the process stops when this value is dropped.
struct Bucket {
    _server: Child,
    address: String,
}

impl Bucket {
    /// Starts the object-store server; `None` if Python is not installed.
    async fn start() -> Option<Self> {
        if !has_language("python3", "HOWDAH_SKIP_PYTHON") {
            return None;
        }
        let python =
            tokio::task::spawn_blocking(|| environment("s3", &["moto[s3,server]>=5"])).await.expect("a Python");
        let program = root().join("tests/system/archive/s3_server.py");
        let mut command = Command::new(python);
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut server = command.spawn().expect("the server");
        let mut lines = BufReader::new(server.stdout.take().expect("stdout")).lines();
        let port = with_timeout("its port", lines.next_line()).await.expect("read").expect("a port");
        Some(Self { _server: server, address: format!("127.0.0.1:{port}") })
    }

    /// Makes one in `every` requests fail with a fault of this kind from now on. Returns the number of failures so far.
    async fn fail(&self, kind: &str, every: usize) -> usize {
        let request = format!("GET /_faults/{kind}/{every} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = ask(&self.address, request.as_bytes()).await;
        answer.lines().last().and_then(|failed| failed.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }

    /// Environment variables that make programs use this object-store server.
    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", "id".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ]
    }

    /// Runs `howdah`. Returns whether it succeeded, its standard output and its standard error.
    async fn run(&self, setting: &Setting, args: &[&str]) -> (bool, String, String) {
        let mut command = Command::new(howdah());
        command.args(args).args(["--database-url", &setting.database.url]).envs(self.variables()).kill_on_drop(true);
        let output = with_timeout("the end of the program", command.output()).await.expect("howdah");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    /// Asserts that every job from 1 to `last` is archived once and that no file is damaged.
    async fn assert_all_once(&self, setting: &Setting, url: &str, last: i64) {
        let (good, out, err) = self.run(setting, &["archive", "verify", "--url", url]).await;
        assert!(good && err.contains(&format!("({last} jobs)")), "{out} {err}");
        let (good, out, err) = self.run(setting, &["history", "--all", "--json"]).await;
        assert!(good, "{err}");
        assert_eq!(ids(&out), (1..=last).collect::<Vec<_>>());
    }
}

fn ids(out: &str) -> Vec<i64> {
    let id = |line: &str| id_of(&serde_json::from_str(line).expect("JSON"));
    let mut ids: Vec<i64> = out.lines().map(id).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn a_bucket_whose_server_fails_has_every_job_once_in_the_end() {
    let Some(bucket) = Bucket::start().await else { return };
    for (kind, every) in [("refuse", 3), ("lost", 3), ("cut", 3), ("slow", 2)] {
        let setting = Setting::with(2_000).await;
        setting.turn_on().await;
        let url = format!("s3://bucket/{kind}");
        let now = ["archive", "now", "--url", &url];
        bucket.fail(kind, every).await;
        // An archive run repeats requests that fail. If a run fails nevertheless, the next run completes it.
        let mut runs = 0;
        loop {
            let (good, _, err) = bucket.run(&setting, &now).await;
            if good {
                break;
            }
            runs += 1;
            assert!(runs < 10, "{kind}: 10 runs failed: {err}");
            assert_eq!(setting.drop_old().await, 0, "{kind}");
        }
        // Readers of the archive also repeat requests that fail.
        let (good, out, err) = bucket.run(&setting, &["history", "--all", "--json"]).await;
        assert!(good && ids(&out).len() == 2_000, "{kind}: {err}");
        assert!(bucket.fail(kind, 0).await > 3, "{kind}: the server refused too few requests");
        assert_eq!(setting.drop_old().await, 1, "{kind}");
        bucket.assert_all_once(&setting, &url, 2_000).await;
    }
}

#[tokio::test]
async fn a_day_is_not_archived_if_the_bucket_stored_other_bytes_than_were_sent() {
    let Some(bucket) = Bucket::start().await else { return };
    let setting = Setting::with(500).await;
    setting.turn_on().await;
    let now = ["archive", "now", "--url", "s3://bucket/a"];
    bucket.fail("wrong", 1).await;
    let (good, _, err) = bucket.run(&setting, &now).await;
    assert!(!good && err.contains("SHA-256 mismatch"), "{err}");
    assert_eq!(setting.drop_old().await, 0);
    bucket.fail("wrong", 0).await;
    let (good, _, err) = bucket.run(&setting, &now).await;
    assert!(good, "{err}");
    assert_eq!(setting.drop_old().await, 1);
    bucket.assert_all_once(&setting, "s3://bucket/a", 500).await;
}

#[tokio::test]
async fn a_run_that_is_killed_at_any_step_leaves_a_bucket_with_every_job_once() {
    let Some(bucket) = Bucket::start().await else { return };
    let setting = Setting::with(500).await;
    setting.turn_on().await;
    let mut last = 500;
    for step in Step::ALL.into_iter().step_by(sized(3, 1)) {
        // Kills an archive run at this step. In later rounds the run archives late jobs.
        assert!(
            setting.archive_to_and_kill("s3://bucket/a", bucket.variables(), step, 1).await,
            "{step:?} was not reached"
        );
        let (good, out, err) = bucket.run(&setting, &["history", "--all", "--json"]).await;
        assert!(good && ids(&out) == (1..=last).collect::<Vec<_>>(), "{step:?}: {err}");
        let (good, _, err) = bucket.run(&setting, &["archive", "now", "--url", "s3://bucket/a"]).await;
        assert!(good, "{step:?}: {err}");
        bucket.assert_all_once(&setting, "s3://bucket/a", last).await;
        setting.finish(last + 1, 10).await;
        last += 10;
    }
}

#[tokio::test]
async fn a_forget_killed_at_any_step_leaves_the_remaining_jobs_in_the_bucket_once() {
    let Some(bucket) = Bucket::start().await else { return };
    for (number, step) in Step::ALL.into_iter().enumerate().step_by(sized(3, 1)) {
        let setting = Setting::with(2_000).await;
        setting.turn_on().await;
        let url = format!("s3://bucket/forget-{number}");
        let (good, _, err) = bucket.run(&setting, &["archive", "now", "--url", &url]).await;
        assert!(good, "{err}");
        assert_eq!(setting.drop_old().await, 1);
        setting.forget_in_and_kill(&url, bucket.variables(), step, 1).await;
        let (good, out, err) = bucket.run(&setting, &["history", "--all", "--json"]).await;
        let first = if step == Step::Archived { 501 } else { 1 };
        assert!(good && ids(&out) == (first..=2_000).collect::<Vec<_>>(), "{step:?}: {err}");
        // Forgets the jobs that the killed process had selected and 100 more, while the server loses some responses.
        bucket.fail("lost", 4).await;
        let before = format!("{}T00:00:01.801Z", setting.day);
        let (good, _, err) = bucket.run(&setting, &["archive", "forget", "--before", &before, "--yes"]).await;
        assert!(good, "{step:?}: {err}");
        bucket.fail("lost", 0).await;
        let (good, out, err) = bucket.run(&setting, &["history", "--all", "--json"]).await;
        assert!(good && ids(&out) == (601..=2_000).collect::<Vec<_>>(), "{step:?}: {err}");
        let (good, out, err) = bucket.run(&setting, &["archive", "verify", "--url", &url]).await;
        assert!(good && err.contains("(1400 jobs)"), "{step:?}: {out} {err}");
    }
}

#[tokio::test]
async fn a_lookup_reports_an_unavailable_bucket_within_its_timeout() {
    let Some(bucket) = Bucket::start().await else { return };
    let setting = Setting::with(100).await;
    setting.turn_on().await;
    let (good, _, err) = bucket.run(&setting, &["archive", "now", "--url", "s3://bucket/a"]).await;
    assert!(good, "{err}");
    assert_eq!(setting.drop_old().await, 1);
    let broker = Program::serve_with(&setting.database, &bucket.variables()).await;
    let job = async |id: i64| broker.jobs().get_job(GetJobRequest { id }).await;
    // Repeats the lookup, because the Python server can take longer than the timeout of a lookup.
    eventually("a job of the bucket", async || job(17).await.is_ok()).await;
    bucket.fail("refuse", 1).await;
    let refused = job(17).await.expect_err("the bucket is unavailable");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("could not be read"), "{refused}");
    let live = broker.enqueue("t").await;
    assert!(job(live).await.is_ok(), "a job in the database needs no archive");
    bucket.fail("refuse", 0).await;
    eventually("a job of the bucket, again", async || job(17).await.is_ok()).await;
}
