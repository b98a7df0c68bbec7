//! Tests that jobs added to a day after it was archived are archived by the next run.

use super::{DAY, Setting};
use crate::support::*;

#[tokio::test]
async fn a_job_that_comes_late_is_archived_before_its_day_is_dropped() {
    let setting = Setting::with(1_000).await;
    setting.turn_on().await;
    setting.archive().await.expect("archived");
    assert!(setting.archive().await.is_none(), "an archived day was archived again");
    // Adds jobs after the archive run, like a transaction that began before the run and commits after it.
    setting.finish(1_001, 10).await;
    assert_eq!(setting.drop_old().await, 0, "a partition was dropped with jobs that are not archived");
    let done = setting.archive().await.expect("archived again");
    assert_eq!((done.jobs, done.manifest.generation, done.manifest.sums.rows), (10, 2, 1_010));
    setting.assert_all_once(1_010).await;
    assert_eq!(setting.count("SELECT count(*) FROM howdah.archive_late").await, 0);
    assert_eq!(setting.drop_old().await, 1);
    // Adds jobs after the partition was dropped, so they are stored in the default partition.
    setting.finish(1_011, 5).await;
    assert_eq!(setting.drop_old().await, 0);
    assert_eq!(
        setting.count("SELECT count(*) FROM howdah.history_default").await,
        5,
        "jobs in the default partition before they are archived"
    );
    assert_eq!(setting.archiver().await.days(false).await.expect("days")[0], setting.day);
    assert_eq!(setting.archive().await.expect("archived again").jobs, 5);
    setting.assert_all_once(1_015).await;
    assert_eq!(setting.drop_old().await, 1);
    assert_eq!(setting.count("SELECT count(*) FROM howdah.history_default").await, 0);
}

#[tokio::test]
async fn a_job_that_comes_while_its_day_is_written_is_archived_with_the_next_run() {
    let setting = Setting::with(1_000).await;
    setting.turn_on().await;
    let writer = setting.database.connect().await;
    let (is_there, there) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let archiver = setting.archiver().await.on_step(std::sync::Arc::new(move |step| {
        if step == howdah_engine::archive::Step::AllStaged {
            is_there.send(()).expect("the test");
            let _ = wait.lock().expect("a lock").recv();
        }
    }));
    let day = setting.day.clone();
    let run = tokio::task::spawn_blocking(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.block_on(archiver.archive(&day)).expect("archived").expect("a day").jobs
    });
    tokio::task::spawn_blocking(move || there.recv().expect("the run has reached the step")).await.expect("a thread");
    setting.finish(1_001, 3).await;
    // This transaction adds a job and stays open while the day is archived, so the run does not see the job.
    writer
        .batch_execute(
            "BEGIN; CREATE TEMP TABLE one ON COMMIT DROP AS SELECT * FROM howdah.history WHERE id = 1;
             UPDATE one SET id = 1004; INSERT INTO howdah.history SELECT * FROM one",
        )
        .await
        .expect("an open transaction");
    go_on.send(()).expect("the run waits at the step");
    assert_eq!(with_timeout("the end of the run", run).await.expect("no panic"), 1_000);
    assert!(
        setting.store().drop_partitions(1).await.is_err() || setting.drop_old_kept().await,
        "a partition was dropped although an open transaction writes to it"
    );
    writer.batch_execute("COMMIT").await.expect("commit");
    assert_eq!(setting.archive().await.expect("archived again").jobs, 4);
    setting.assert_all_once(1_004).await;
    assert_eq!(setting.drop_old().await, 1);
}

impl Setting {
    /// Runs retention and returns whether it kept the day's partition.
    async fn drop_old_kept(&self) -> bool {
        let rows =
            format!("SELECT count(*) FROM howdah.history WHERE finished < ({DAY} + 1)::timestamp AT TIME ZONE 'UTC'");
        self.count(&rows).await > 0
    }
}

#[tokio::test]
async fn the_current_day_can_be_archived_in_part_and_completed_later() {
    let setting = Setting::with(10).await;
    let broker = TestBroker::on(&setting.database).await;
    let mut worker = broker.worker("today").await;
    let mut finish = async |jobs: usize| {
        broker.enqueue_all((0..jobs).map(|n| new_job("today", format!("{n}")))).await;
        for _ in 0..jobs {
            let job = worker.next().await;
            worker.ack(&job).await;
        }
    };
    finish(20).await;
    let archiver = setting.archiver().await;
    let today = archiver.days(true).await.expect("days").pop().expect("today");
    assert_eq!(archiver.archive(&today).await.expect("archived").expect("a day").jobs, 20);
    finish(5).await;
    assert_eq!(archiver.archive(&today).await.expect("archived").expect("a day").jobs, 5);
    let ids = setting.files.ids();
    assert_eq!(ids.len(), 25);
    assert!(ids.windows(2).all(|two| two[0] < two[1]), "a job is in two files");
}
