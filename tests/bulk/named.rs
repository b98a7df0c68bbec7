//! Who ended a job: a bulk operation is named where people look.

use howdah_proto::v1::ExplainJobRequest;

use super::{undo::undo, *};

#[tokio::test]
async fn a_job_that_a_bulk_operation_has_ended_names_it_and_its_reason_and_so_does_the_audit_of_its_undo() {
    let broker = TestBroker::start().await;
    let id = broker.enqueue("n").await;
    let gone = dead(&broker, "d", &["a"]).await[0];
    let mut request =
        tonic::Request::new(StartBulkRequest { spec: Some(spec(BulkOperation::Cancel, "n")), ..Default::default() });
    request.metadata_mut().insert("howdah-reason", "ticket 42".parse().expect("ASCII"));
    let cancel = broker.bulks().start_bulk(request).await.expect("a start").into_inner().bulk.expect("one").id;
    broker.ended_bulk(cancel).await;
    let discard = broker.start_bulk(spec(BulkOperation::Discard, "d")).await.id;
    broker.ended_bulk(discard).await;
    for (id, says) in [
        (id, format!("Bulk operation {cancel} did that (ticket 42).")),
        (gone, format!("Bulk operation {discard} did that.")),
    ] {
        let explained = broker.jobs().explain_job(ExplainJobRequest { id }).await.expect("an explanation").into_inner();
        assert!(explained.reasons[0].text.ends_with(&says), "{explained:?}");
    }
    let undo = broker.start_bulk(undo(cancel)).await.id;
    broker.ended_bulk(undo).await;
    let why = format!("SELECT count(*) FROM howdah.audit WHERE reason = 'bulk operation {undo} (undo of {cancel})'");
    assert_eq!(broker.count(&why).await, 1);
    let explained = broker.jobs().explain_job(ExplainJobRequest { id }).await.expect("an explanation").into_inner();
    assert!(!explained.reasons[0].text.contains("Bulk operation"), "{explained:?}");
}
