//! Tests that `archive expire` deletes archived days older than `archive_days`.

use tonic::Code;

use super::{DAY, Setting, archiver};
use crate::support::*;

impl Setting {
    /// Deletes archived days older than `days_kept` days and returns the deleted days.
    async fn expire(&self, days_kept: u16) -> Result<Vec<String>, String> {
        let archiver = self.archiver().await;
        let mut gone = Vec::new();
        for day in archiver.expired(days_kept).await.expect("days") {
            let files = archiver.expire(&day, days_kept).await.map_err(|error| error.to_string())?;
            gone.extend(files.map(|_| day));
        }
        Ok(gone)
    }

    fn files_of_day(&self) -> usize {
        self.files.everything().iter().filter(|path| path.to_string_lossy().contains(&self.day)).count()
    }
}

#[tokio::test]
async fn a_day_is_deleted_when_it_is_old_and_its_partition_is_gone() {
    let setting = Setting::with(500).await;
    setting.turn_on().await;
    setting.archive().await.expect("archived");
    assert!(setting.expire(1).await.expect("nothing").is_empty(), "a day was expired whose partition exists");
    assert_eq!(setting.drop_old().await, 1);
    assert!(setting.expire(2).await.expect("nothing").is_empty(), "a day was expired that is not older than 2 days");
    let broker = TestBroker::on(&setting.database).await;
    assert_eq!(broker.job(17).await.id, 17);
    assert_eq!(setting.expire(1).await.expect("gone"), std::slice::from_ref(&setting.day));
    assert_eq!(setting.files_of_day(), 0);
    assert_eq!(setting.count("SELECT count(*) FROM howdah.archive_file").await, 0);
    assert_eq!(setting.count(&format!("SELECT count(*) FROM howdah.archive WHERE day = {DAY}")).await, 0);
    let request = howdah_proto::v1::GetJobRequest { id: 17 };
    assert_eq!(broker.jobs().get_job(request).await.expect_err("gone").code(), Code::NotFound);
    // Jobs that are added to a deleted day are archived as if the day were new.
    setting.finish(501, 5).await;
    assert_eq!(setting.archive().await.expect("archived").jobs, 5);
    assert_eq!(setting.files.ids(), (501..=505).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_day_whose_files_cannot_be_deleted_is_deleted_later() {
    let setting = Setting::with(300).await;
    setting.archive_and_drop().await;
    setting.files.move_away();
    let error = setting.expire(1).await.expect_err("no files");
    assert!(error.contains("the directory does not exist"), "{error}");
    let broker = TestBroker::on(&setting.database).await;
    let request = howdah_proto::v1::GetJobRequest { id: 17 };
    let refused = broker.jobs().get_job(request).await.expect_err("gone");
    assert_eq!(refused.code(), Code::NotFound, "a lookup reads a day that is being deleted");
    setting.files.move_back();
    // First another run holds the day, so it is not deleted. Then the test simulates a run that was killed after it has
    // deleted the manifest and before it deletes the other files.
    setting.database.sql("UPDATE howdah.archive SET held_until = now() + interval '1 hour'").await;
    assert!(setting.expire(1).await.expect("nothing").is_empty());
    setting.database.sql("UPDATE howdah.archive SET held_until = now()").await;
    setting.files.location().delete(&format!("store=0/day={}/_manifest.json", setting.day)).await.expect("deleted");
    assert_eq!(setting.expire(1).await.expect("gone"), std::slice::from_ref(&setting.day));
    assert_eq!(setting.files_of_day(), 0);
}

#[tokio::test]
async fn files_of_another_database_are_not_deleted() {
    let (one, other) = (Setting::with(50).await, Setting::with(60).await);
    other.database.sql("UPDATE howdah.identity SET id = gen_random_uuid()").await;
    for setting in [&one, &other] {
        setting.archive_and_drop().await;
    }
    let wrong = format!("UPDATE howdah.archive SET url = '{}'", one.files.url());
    other.database.sql(&wrong).await;
    let archiver = archiver(&other.database.url, &other.files.url()).await;
    let error = archiver.expire(&other.day, 1).await.expect_err("refused").to_string();
    assert!(error.contains("its own archive_url"), "{error}");
    one.assert_all_once(50).await;
}

#[tokio::test]
async fn a_broker_deletes_days_that_are_older_than_archive_days() {
    let setting = Setting::with(500).await;
    setting.archive_and_drop().await;
    let broker = TestBroker::on_with(&setting.database, |config| {
        config.archive_url = Some(setting.files.url());
        config.archive_days = Some(1);
    })
    .await;
    broker.until("no files in the table of archive files", "SELECT NOT EXISTS (SELECT FROM howdah.archive_file)").await;
    eventually("the expired day in the metric", async || {
        broker.metrics().await.contains("howdah_archive_expired_days_total 1\n")
    })
    .await;
    eventually("no files of the day", async || setting.files_of_day() == 0).await;
}
