//! Tests bulk operations that are refused because they are malformed, lack permission, or are too many.

use howdah_proto::v1::{GetBulkRequest, ListBulksRequest};
use tonic::Code;

use super::*;
use crate::access::Guarded;

#[tokio::test]
async fn a_spec_out_of_bounds_is_refused_and_named() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let good = || spec(BulkOperation::Cancel, "t");
    let cases = [
        ("spec.operation", BulkSpec { operation: 0, ..good() }),
        ("spec.operation", BulkSpec { operation: i32::MAX, ..good() }),
        ("spec.task_type", BulkSpec { task_type: "'; DROP TABLE howdah.bulk; --".into(), ..good() }),
        ("spec.state", BulkSpec { state: i32::MIN, ..good() }),
        ("spec.priority", BulkSpec { priority: Some(i32::MIN), ..spec(BulkOperation::Reprioritize, "t") }),
        ("spec.max_jobs_per_second", BulkSpec { max_jobs_per_second: i32::MIN, ..good() }),
    ];
    for (field, spec) in cases {
        let preview = broker.bulks().preview_bulk(PreviewBulkRequest { spec: Some(spec.clone()) }).await;
        let start = broker.bulks().start_bulk(StartBulkRequest { spec: Some(spec), ..Default::default() }).await;
        for refused in [preview.map(drop).unwrap_err(), start.map(drop).unwrap_err()] {
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert_eq!(Refusal::from(refused).field, field);
        }
    }
    let junk = BulkSpec { error_group: "'; %s ../ \u{1b}[2J".into(), ..good() };
    assert_eq!(broker.preview(junk).await.selected_count, 0);
    for id in [0, -1, i64::MIN, i64::MAX] {
        let refused = broker.bulks().get_bulk(GetBulkRequest { id }).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
    }
    let unknown = StartBulkRequest { spec: Some(spec(BulkOperation::Cancel, "never.seen")), ..Default::default() };
    assert_eq!(broker.bulks().start_bulk(unknown).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn the_same_request_key_starts_one_bulk_operation() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let request = || StartBulkRequest { spec: Some(spec(BulkOperation::Discard, "t")), request_key: "k".into() };
    let start =
        async || broker.bulks().start_bulk(request()).await.expect("a start").into_inner().bulk.expect("one").id;
    assert_eq!(start().await, start().await);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.bulk").await, 1);
    assert_eq!(broker.count("SELECT count(*) FROM howdah.audit WHERE method = 'StartBulk'").await, 1);
}

#[tokio::test]
async fn a_hundred_bulk_operations_may_be_running_or_paused() {
    let broker = TestBroker::start().await;
    broker.enqueue("t").await;
    let bulk = broker.start_bulk(spec(BulkOperation::Discard, "t")).await;
    broker.ended_bulk(bulk.id).await;
    broker
        .sql(
            "INSERT INTO howdah.bulk (operation, type_id, task_type, last_job_id, selected, has_more, principal, peer, reason, state)
             SELECT 'discard', type_id, task_type, 0, 0, false, '', '', '', 'paused' FROM howdah.bulk, generate_series(1, 100)",
        )
        .await;
    let request = StartBulkRequest { spec: Some(spec(BulkOperation::Discard, "t")), ..Default::default() };
    let refused = broker.bulks().start_bulk(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let list = ListBulksRequest { open_only: true, page_size: 1, ..Default::default() };
    let newest = broker.bulks().list_bulks(list).await.expect("a list").into_inner().bulks.remove(0);
    broker.cancel_bulk(newest.id).await;
    broker.bulks().start_bulk(request).await.expect("a start");
}

#[tokio::test]
async fn lists_have_pages_and_can_be_narrowed() {
    let broker = TestBroker::start().await;
    broker.enqueue_all(["a", "b"]).await;
    let mut ids = Vec::new();
    for task_type in ["a", "b", "a", "a"] {
        ids.push(broker.start_bulk(spec(BulkOperation::Discard, task_type)).await.id);
    }
    let list = async |request: ListBulksRequest| broker.bulks().list_bulks(request).await.expect("a list").into_inner();
    let mut found = Vec::new();
    let mut request = ListBulksRequest { task_type: "a".into(), page_size: 2, ..Default::default() };
    loop {
        let page = list(request.clone()).await;
        found.extend(page.bulks.into_iter().map(|bulk| bulk.id));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(found, [ids[3], ids[2], ids[0]]);
    for id in ids {
        broker.ended_bulk(id).await;
    }
    assert!(list(ListBulksRequest { open_only: true, ..Default::default() }).await.bulks.is_empty());
}

#[tokio::test]
async fn a_caller_without_a_scope_for_the_type_cannot_start_change_or_see_its_bulk_operations() {
    let guarded = Guarded::start().await;
    guarded.admin.enqueue_all(["mine.a", "theirs"]).await;
    let foreign = guarded.admin.start_bulk(slow(BulkOperation::Discard, "theirs")).await.id;
    let caller = guarded.caller("ann", &["operate:mine.*", "read:mine.*"]).await;
    for task_type in ["theirs", "never.seen"] {
        let spec = || Some(spec(BulkOperation::Cancel, task_type));
        let preview = caller.bulks().preview_bulk(PreviewBulkRequest { spec: spec() }).await.map(drop);
        let start = caller.bulks().start_bulk(StartBulkRequest { spec: spec(), ..Default::default() }).await.map(drop);
        for refused in [preview, start] {
            assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied, "{task_type}");
        }
    }
    let mut bulks = caller.bulks();
    let calls = [
        bulks.get_bulk(GetBulkRequest { id: foreign }).await.map(drop),
        bulks.pause_bulk(v1::PauseBulkRequest { id: foreign }).await.map(drop),
        bulks.resume_bulk(v1::ResumeBulkRequest { id: foreign }).await.map(drop),
        bulks.cancel_bulk(v1::CancelBulkRequest { id: foreign }).await.map(drop),
    ];
    for refused in calls {
        assert_eq!(refused.unwrap_err().code(), Code::NotFound);
    }
    let own = caller.start_bulk(spec(BulkOperation::Cancel, "mine.a")).await.id;
    let listed = caller.bulks().list_bulks(ListBulksRequest { page_size: 1, ..Default::default() }).await;
    let listed: Vec<i64> = listed.expect("a list").into_inner().bulks.into_iter().map(|bulk| bulk.id).collect();
    assert_eq!(listed, [own]);
    let reader = guarded.caller("bob", &["operate:mine.*"]).await;
    let preview = reader.preview(spec(BulkOperation::Cancel, "mine.a")).await;
    assert!(preview.examples.iter().all(|job| job.task_type.is_empty()), "{preview:?}");
}
