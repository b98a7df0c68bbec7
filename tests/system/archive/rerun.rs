//! Tests that `RerunJobs` runs archived jobs again, after their day was dropped from the database.

use howdah_core::config::ArchivePayloads;
use howdah_engine::archive::Archiver;
use howdah_proto::v1::{RerunJobsRequest, RerunOutcome};

use super::Setting;
use crate::support::*;

#[tokio::test]
async fn an_archived_job_runs_again_with_its_payload_and_its_options() {
    let setting = Setting::with(300).await;
    setting.database.skip_ids(10_000).await;
    setting.archive_and_drop().await;
    let broker = TestBroker::on(&setting.database).await;
    let old = broker.job(35).await;
    let jobs = broker.rerun(RerunJobsRequest { ids: vec![35, 9_999], ..Default::default() }).await;
    assert_eq!((jobs[0].outcome(), jobs[1].outcome()), (RerunOutcome::New, RerunOutcome::Unknown));
    let new = broker.job(jobs[0].new_id).await;
    assert_eq!((&new.payload, &new.headers, new.parent_id), (&old.payload, &old.headers, 35));
    assert_eq!((&*new.task_type, &*new.limit_key, new.key), (&*old.task_type, "l", old.key));
}

#[tokio::test]
async fn an_archived_job_without_its_payload_needs_a_new_one() {
    let setting = Setting::with(50).await;
    setting.database.skip_ids(10_000).await;
    setting.turn_on().await;
    let store = setting.store();
    let id = store.database_id().await.expect("an identity");
    let archiver = Archiver::new(store, &setting.files.url(), ArchivePayloads::Hash, "a test", &id);
    archiver.archive(&setting.day).await.expect("archived");
    setting.drop_old().await;
    let broker = TestBroker::on(&setting.database).await;
    // Job 9 was enqueued with an empty payload, which is known.
    let jobs = broker.rerun(RerunJobsRequest { ids: vec![9, 17], ..Default::default() }).await;
    assert_eq!((jobs[0].outcome(), jobs[1].outcome()), (RerunOutcome::New, RerunOutcome::NoPayload));
    let request = RerunJobsRequest { ids: vec![17], payload: Some("new".into()), ..Default::default() };
    let jobs = broker.rerun(request).await;
    assert_eq!(&broker.job(jobs[0].new_id).await.payload[..], b"new");
}
