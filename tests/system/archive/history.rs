//! Tests that `howdah history` lists finished jobs from the database and from the archive, each once.

use std::{ops::ControlFlow, sync::mpsc};

use howdah_archive::Job;
use howdah_engine::archive::{ArchiveError, HistoryQuery, Reader, Take};
use serde_json::Value;

use super::{DAY, Setting};
use crate::support::*;

impl Setting {
    async fn history(&self, args: &[&str]) -> (bool, String, String) {
        let all = [&["history"], args, &["--database-url", &self.database.url]].concat();
        let (status, out, err) = run(&all, b"").await;
        (status.success(), out, err)
    }

    /// Runs `howdah history` and returns the listed jobs as JSON objects, sorted by id.
    async fn listed(&self, args: &[&str]) -> Vec<Value> {
        let (good, out, err) = self.history(&[args, &["--all", "--json"]].concat()).await;
        assert!(good, "{err}");
        let mut jobs: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        jobs.sort_by_key(id_of);
        jobs
    }

    async fn assert_listed_once(&self, last: i64) {
        self.assert_listed(1..=last).await;
    }

    async fn assert_listed(&self, wanted: std::ops::RangeInclusive<i64>) {
        let ids: Vec<_> = self.listed(&[]).await.iter().map(id_of).collect();
        assert_eq!(ids, wanted.collect::<Vec<_>>());
    }

    /// Inserts ten jobs that finished yesterday, a day that is not archived.
    pub async fn finish_yesterday(&self, first: i64) {
        self.finish(first, 10).await;
        let last = first + 9;
        let yesterday = format!(
            "SELECT howdah.make_day_partition('history', 'finished', {DAY} + 1);
             UPDATE howdah.history SET finished = finished + interval '1 day' WHERE id BETWEEN {first} AND {last}"
        );
        self.database.sql(&yesterday).await;
    }
}

#[tokio::test]
async fn jobs_are_listed_once_wherever_they_are() {
    let setting = Setting::with(1_000).await;
    setting.turn_on().await;
    setting.finish_yesterday(1_001).await;
    setting.assert_listed_once(1_010).await;
    // From now on the jobs are both in the archive and in the database.
    setting.archive().await.expect("archived");
    setting.assert_listed_once(1_010).await;
    // Adds jobs to the day after it was archived.
    setting.finish(1_011, 5).await;
    setting.assert_listed_once(1_015).await;
    setting.archive().await.expect("archived again");
    setting.assert_listed_once(1_015).await;
    assert_eq!(setting.drop_old().await, 1);
    setting.assert_listed_once(1_015).await;
    // Adds jobs to the day after its partition was dropped. The runs that archive these jobs are killed half way.
    setting.finish(1_016, 5).await;
    setting.assert_listed_once(1_020).await;
    for step in [howdah_engine::archive::Step::AllStaged, howdah_engine::archive::Step::ManifestWritten] {
        assert!(setting.archive_and_kill(step, 1).await, "{step:?}");
        setting.assert_listed_once(1_020).await;
    }
    setting.archive().await.expect("archived again");
    setting.assert_listed_once(1_020).await;
    let all = setting.listed(&["--since", "1970-01-01T00:00:00Z"]).await;
    assert_eq!(all.len(), 1_020);
}

#[tokio::test]
async fn archived_jobs_are_listed_as_they_were_from_the_database() {
    let setting = Setting::with(3_000).await;
    let large = "UPDATE howdah.history SET payload = '', options = '{\"payload_bytes\": 100000}', result = 'done' WHERE id = 8;
                 INSERT INTO howdah.payload (id, created, data) VALUES (8, now(), convert_to(repeat('x', 100000), 'UTF8'))";
    setting.database.sql(large).await;
    let (since, until) = (format!("{}T00:00:03Z", setting.day), format!("{}T00:00:05Z", setting.day));
    let choices: [(&[&str], usize); 7] = [
        (&["--payload"], 3_000),
        (&["rare"], 30),
        (&["mail", "--key", "key-8", "--payload"], 1),
        (&["rare", "--key", "key-8"], 0),
        (&["a/b:c", "--state", "cancelled"], 20),
        (&["--since", &since, "--until", &until], 667),
        (&["no-such-type"], 0),
    ];
    let mut before = Vec::new();
    for (args, count) in choices {
        before.push(setting.listed(args).await);
        assert_eq!(before.last().map(Vec::len), Some(count), "{args:?}");
    }
    let (_, csv, _) = setting.history(&["mail", "--key", "key-8", "--csv", "--payload"]).await;
    assert!(csv.starts_with("id,task_type,created") && csv.contains(&"x".repeat(100_000)) && csv.ends_with(",done\n"));
    setting.archive_and_drop().await;
    for ((args, _), before) in choices.into_iter().zip(before) {
        let after = setting.listed(args).await;
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before, after, "{args:?}");
        }
        assert_eq!(before.len(), after.len(), "{args:?}");
    }
    assert_eq!(setting.history(&["mail", "--key", "key-8", "--csv", "--payload"]).await.1, csv);
    let (_, out, err) = setting.history(&["--limit", "7"]).await;
    assert!(
        out.lines().count() == 8 && out.contains("KEY, LAST ERROR") && err.contains("only the first 7 jobs"),
        "{out} {err}"
    );
    let (good, _, err) = setting.history(&["--key", "key-8"]).await;
    assert!(!good && err.contains("<TYPE>"), "{err}");
}

#[tokio::test]
async fn a_parquet_file_appears_when_it_is_whole() {
    let setting = Setting::with(1_000).await;
    setting.finish_yesterday(1_001).await;
    setting.archive_and_drop().await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.parquet");
    let name = file.to_str().expect("UTF-8");
    let (good, out, err) = setting.history(&["--all", "--parquet", name, "--payload"]).await;
    assert!(good && out.is_empty(), "{out} {err}");
    let mut ids = howdah_archive::ids_of(std::fs::read(&file).expect("a file").into()).expect("Parquet");
    ids.sort_unstable();
    assert_eq!(ids, (1..=1_010).collect::<Vec<_>>());
    // The second listing fails at a damaged archive file, and must not leave an incomplete output file.
    std::fs::remove_file(&file).expect("removed");
    let (path, _) = setting.files.parquet().remove(1);
    std::fs::write(&path, "no Parquet").expect("damaged");
    let (good, _, err) = setting.history(&["--all", "--parquet", name]).await;
    assert!(!good && err.contains("part-"), "{err}");
    assert_eq!(
        std::fs::read_dir(directory.path()).expect("a directory").count(),
        0,
        "an incomplete listing left a file"
    );
}

#[tokio::test]
async fn an_unavailable_archive_fails_a_listing_after_the_jobs_in_the_database() {
    let setting = Setting::with(100).await;
    setting.archive_and_drop().await;
    setting.finish_yesterday(101).await;
    setting.files.move_away();
    let (good, out, err) = setting.history(&["--json"]).await;
    assert!(!good && err.contains("the directory does not exist"), "{err}");
    assert_eq!(out.lines().count(), 10, "{out}");
    let (good, out, _) = setting.history(&["--json", "--limit", "10"]).await;
    assert!(good && out.lines().count() == 10, "the first 10 jobs are in the database, and yet the listing failed");
}

/// A writer that reports the first job that it gets, and then blocks until the test lets it continue.
struct Slow {
    is_there: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
    taken: usize,
}

impl Take for Slow {
    type Error = ArchiveError;

    fn take(&mut self, _: &Job<'_>) -> Result<ControlFlow<()>, ArchiveError> {
        if self.taken == 0 {
            self.is_there.send(()).expect("the test");
            let _ = self.go_on.recv();
        }
        self.taken += 1;
        Ok(ControlFlow::Continue(()))
    }
}

#[tokio::test]
async fn a_day_that_is_dropped_while_it_is_read_is_an_error() {
    let setting = Setting::with(100).await;
    setting.turn_on().await;
    let (is_there, there) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let reader = Reader::new(setting.store());
    // Reads on a separate thread, because the writer blocks until the test continues it.
    let reading = tokio::task::spawn_blocking(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let mut slow = Slow { is_there, go_on: wait, taken: 0 };
        let query = HistoryQuery::default();
        runtime.block_on(reader.history(&query, &mut slow)).map_err(|error| error.to_string())
    });
    tokio::task::spawn_blocking(move || there.recv().expect("the listing has written its first job"))
        .await
        .expect("a thread");
    setting.archive().await.expect("archived");
    assert_eq!(setting.drop_old().await, 1);
    go_on.send(()).expect("the writer of the listing waits");
    let error = with_timeout("the end of the listing", reading)
        .await
        .expect("no panic")
        .expect_err("the day was archived and dropped during the listing");
    assert!(error.contains("read it again"), "{error}");
}

#[tokio::test]
async fn a_day_whose_files_are_replaced_while_it_is_read_is_an_error() {
    let setting = Setting::with(5_000).await;
    setting.archive_and_drop().await;
    let (is_there, there) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let reader = Reader::new(setting.store());
    let reading = tokio::task::spawn_blocking(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let mut slow = Slow { is_there, go_on: wait, taken: 0 };
        let query = HistoryQuery::default();
        runtime.block_on(reader.history(&query, &mut slow)).map_err(|error| error.to_string())
    });
    tokio::task::spawn_blocking(move || there.recv().expect("the listing has written its first job"))
        .await
        .expect("a thread");
    assert_eq!(setting.forget_early().await.expect("forgotten").jobs, 500);
    go_on.send(()).expect("the writer of the listing waits");
    match with_timeout("the end of the listing", reading).await.expect("no panic") {
        Err(error) => assert!(error.contains("read it again"), "{error}"),
        Ok(()) => panic!("the listing succeeded although its files were replaced"),
    }
    setting.assert_listed(501..=5_000).await;
}
