//! Tests that finished jobs are archived to files before their partition is dropped: each job once, whichever step
//! fails.

mod unavailable; // an archive that does not respond
mod commands; // howdah archive
mod expire; // deletion of old days
mod files; // the files of an archive, as a reader finds them
mod find; // one job by its id
mod forget; // files are rewritten without some jobs
mod history; // live and archived jobs in one list
mod kill; // kill -9 at each step
mod late; // jobs added after their day was archived
mod rerun; // archived jobs that RerunJobs runs again
mod restore; // archived jobs enqueued again
mod stores; // several stores, one archive
mod readers; // DuckDB, pandas, Polars
mod s3; // a bucket whose server fails

use howdah_core::config::{ArchivePayloads, Config};
use howdah_engine::{
    archive::{Archived, Archiver},
    store::Store,
};

use crate::support::*;
use files::Files;

/// SQL expression for the day that these tests archive: two days ago, in UTC.
const DAY: &str = "(now() AT TIME ZONE 'UTC')::date - 2";

/// A database with finished jobs of three task types on `DAY`, and the directory of the archive.
struct Setting {
    database: TestDatabase,
    files: Files,
    day: String,
}

impl Setting {
    async fn with(jobs: i64) -> Self {
        let database = database().await;
        let client = database.connect().await;
        let day: String = client.query_one(&format!("SELECT ({DAY})::text"), &[]).await.expect("a day").get(0);
        let setting = Self { database, files: Files::new(), day };
        setting.database.sql(&format!("SELECT howdah.make_day_partition('history', 'finished', {DAY})")).await;
        setting.database.sql("INSERT INTO howdah.task_type (name) VALUES ('mail'), ('a/b:c'), ('rare')").await;
        setting.finish(1, jobs).await;
        setting
    }

    /// Inserts further jobs that finished on `DAY`, with ids from `first` on.
    async fn finish(&self, first: i64, jobs: i64) {
        let last = first + jobs - 1;
        let sql = format!(
            "INSERT INTO howdah.history (id, created, leased_at, finished, type_id, outcome, attempt, max_attempts, priority,
                                         key, headers, options, failures, payload, result)
             SELECT g, d.begins + g * interval '1 ms', d.begins + g * interval '2 ms', d.begins + g * interval '3 ms',
                    (SELECT id FROM howdah.task_type WHERE name = CASE WHEN g % 100 = 7 THEN 'rare' WHEN g % 3 = 0 THEN 'a/b:c' ELSE 'mail' END),
                    CASE WHEN g % 50 = 0 THEN 'cancelled' ELSE 'succeeded' END::howdah.job_state, 1, 10, 0,
                    CASE WHEN g % 2 = 0 THEN 'key-' || g END, CASE WHEN g % 5 = 0 THEN '{{\"tenant\": \"x\"}}'::jsonb END,
                    CASE WHEN g % 7 = 0 THEN '{{\"limit_key\": \"l\"}}'::jsonb END, NULL,
                    convert_to(repeat('payload ' || g, (g % 9)::int), 'UTF8'), NULL
             FROM generate_series({first}::bigint, {last}) g, (SELECT ({DAY})::timestamp AT TIME ZONE 'UTC' AS begins) d"
        );
        self.database.sql(&sql).await;
    }

    fn store(&self) -> Store {
        Store::new(&Config::new(&self.database.url)).expect("a store")
    }

    async fn archiver(&self) -> Archiver {
        archiver(&self.database.url, &self.files.url()).await
    }

    /// Archives the day.
    async fn archive(&self) -> Option<Archived> {
        self.archiver().await.archive(&self.day).await.expect("archived")
    }

    /// Turns archiving on, so that retention drops only archived days.
    async fn turn_on(&self) {
        self.store().set_archive_target(&self.files.url(), "a test").await.expect("a target");
    }

    /// Runs retention and returns the number of day partitions that it dropped.
    async fn drop_old(&self) -> i64 {
        let drop = "SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date - 1)::bigint";
        self.database.count_unless_locked(drop).await
    }

    async fn count(&self, sql: &str) -> i64 {
        self.database.count(sql).await
    }

    /// Asserts that the files and the manifests hold every job from 1 to `last` exactly once.
    async fn assert_all_once(&self, last: i64) {
        assert_eq!(self.files.ids(), (1..=last).collect::<Vec<_>>());
        assert_eq!(self.files.staged(), 0, "staged files of earlier runs are left");
        let manifest = self.files.manifest(&self.day);
        assert_eq!(manifest.sums.rows, last);
        for part in &manifest.parts {
            howdah_archive::check(&self.files.location(), &part.path, part).await.expect("a good file");
        }
        assert_eq!(manifest.parts.len(), self.files.parquet().len(), "files that the manifest does not name");
    }
}

async fn archiver(database: &str, url: &str) -> Archiver {
    let store = Store::new(&Config::new(database)).expect("a store");
    let id = store.database_id().await.expect("an identity");
    // Makes row groups and files small, so that a day has many files.
    let bounds = howdah_archive::Bounds { group_rows: 300, part_bytes: 8_000, ..howdah_archive::Bounds::default() };
    Archiver::new(store, url, ArchivePayloads::Full, "a test", &id).with_bounds(bounds)
}

#[tokio::test]
async fn a_broker_archives_days_that_are_over_and_only_then_they_are_dropped() {
    let setting = Setting::with(5_000).await;
    let broker = TestBroker::on_with(&setting.database, |config| {
        config.archive_url = Some(setting.files.url());
        config.history_days = 1;
    })
    .await;
    let archived = format!("SELECT state IN ('archived', 'dropped') FROM howdah.archive WHERE day = {DAY}");
    broker.until("an archived day", &format!("SELECT coalesce(({archived}), false)")).await;
    setting.assert_all_once(5_000).await;
    eventually("the archived jobs in the metric", async || {
        broker.metrics().await.contains("howdah_archived_jobs_total 5000\n")
    })
    .await;
    assert!(broker.metrics().await.contains("howdah_archive_late 0\n"));
    // Drops the archived day's partition, unless the broker's retention has already dropped it.
    setting.drop_old().await;
    let rows =
        format!("SELECT count(*) FROM howdah.history WHERE finished < ({DAY} + 1)::timestamp AT TIME ZONE 'UTC'");
    assert_eq!(setting.count(&rows).await, 0);
    setting.assert_all_once(5_000).await;
}

#[tokio::test]
async fn a_day_that_is_not_archived_is_neither_dropped_nor_pruned_and_is_late() {
    let setting = Setting::with(500).await;
    setting.turn_on().await;
    setting.database.sql("UPDATE howdah.task_type SET history_days = 1 WHERE name = 'mail'").await;
    let store = setting.store();
    assert_eq!(store.drop_partitions(1).await.expect("nothing"), 0);
    assert!(store.prunable_history(30).await.expect("days").is_empty());
    assert_eq!(store.archive_overdue(0).await.expect("late"), 2, "yesterday and the day before are overdue");
    // The archive's directory cannot be created, because a regular file has its name.
    let broken = archiver(&setting.database.url, &format!("{}/x", setting.files.a_file())).await;
    let error = broken.archive(&setting.day).await.expect_err("no directory").to_string();
    assert!(error.contains("x"), "{error}");
    let noted = "SELECT count(*) FROM howdah.archive WHERE error <> '' AND held_until IS NULL";
    assert_eq!(setting.count(noted).await, 1);
    assert_eq!(store.drop_partitions(1).await.expect("nothing"), 0);
    assert_eq!(setting.count("SELECT count(*) FROM howdah.history").await, 500);
    // The archive's URL works again, so the day is archived and retention may delete its jobs.
    assert_eq!(setting.archive().await.expect("archived").jobs, 500);
    let days = store.prunable_history(30).await.expect("days");
    assert_eq!(days.len(), 1, "only the archived day: {days:?}");
    let (deleted, _) = store.prune_history(&days[0], 0, 1_024).await.expect("pruned");
    assert!(deleted > 300, "{deleted}");
    assert_eq!(setting.drop_old().await, 1);
    setting.assert_all_once(500).await;
    assert_eq!(store.archive_overdue(0).await.expect("late"), 1, "yesterday");
}

#[tokio::test]
async fn every_job_is_archived_with_full_payloads_with_hashes_or_without_payloads() {
    for (payloads, name) in
        [(ArchivePayloads::Full, "full"), (ArchivePayloads::Hash, "hash"), (ArchivePayloads::None, "none")]
    {
        let setting = Setting::with(200).await;
        // Gives job 9 a large payload, which is stored in `howdah.payload`.
        let large = "UPDATE howdah.history SET payload = '', options = '{\"payload_bytes\": 100000}' WHERE id = 9;
                     INSERT INTO howdah.payload (id, created, data) VALUES (9, now(), convert_to(repeat('x', 100000), 'UTF8'))";
        setting.database.sql(large).await;
        let store = setting.store();
        let id = store.database_id().await.expect("an identity");
        let archiver = Archiver::new(store, &setting.files.url(), payloads, "a test", &id);
        let done = archiver.archive(&setting.day).await.expect("archived").expect("a day");
        assert_eq!((done.jobs, done.manifest.payloads.as_str()), (200, name));
        setting.assert_all_once(200).await;
        let bytes = setting.files.parquet().iter().map(|(_, data)| data.len()).sum::<usize>();
        assert!(bytes < 40_000, "{bytes} bytes of {name}");
    }
}

#[tokio::test]
async fn two_databases_do_not_write_to_one_place() {
    let (one, other) = (Setting::with(50).await, Setting::with(60).await);
    other.database.sql("UPDATE howdah.identity SET id = gen_random_uuid()").await;
    one.archive().await.expect("archived");
    let error = archiver(&other.database.url, &one.files.url()).await.archive(&other.day).await.expect_err("refused");
    assert!(error.to_string().contains("its own archive_url"), "{error}");
    assert_eq!(one.files.ids(), (1..=50).collect::<Vec<_>>());
}
