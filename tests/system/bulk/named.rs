//! Tests that a job shows the id of the bulk operation that ended it.

use howdah_proto::v1::ExplainJobRequest;

use super::{undo::undo, *};
use crate::ui::client::Browser;

#[tokio::test]
async fn explanations_and_audit_name_the_bulk_operations_that_ended_and_restored_a_job() {
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
    for (id, expected) in [
        (id, format!("Bulk operation {cancel} ended the job (ticket 42).")),
        (gone, format!("Bulk operation {discard} ended the job.")),
    ] {
        let explained = broker.jobs().explain_job(ExplainJobRequest { id }).await.expect("an explanation").into_inner();
        assert!(explained.reasons[0].text.ends_with(&expected), "{explained:?}");
    }
    let undo = broker.start_bulk(undo(cancel)).await.id;
    broker.ended_bulk(undo).await;
    let why = format!("SELECT count(*) FROM howdah.audit WHERE reason = 'bulk operation {undo} (undo of {cancel})'");
    assert_eq!(broker.count(&why).await, 1);
    let explained = async || {
        let answer = broker.jobs().explain_job(ExplainJobRequest { id }).await.expect("an explanation");
        answer.into_inner().reasons[0].text.clone()
    };
    let reason = explained().await;
    let (had, by) =
        (format!(" Bulk operation {cancel} had cancelled the job at "), format!(" by bulk operation {undo}."));
    assert!(reason.contains(&had) && reason.contains("; that was undone at ") && reason.ends_with(&by), "{reason}");
    let page = Browser::at(&broker).get(&format!("/ui/job?id={id}")).await;
    page.has(&[&*had, &*by]);
    // Cancels the job again. The explanation names both the earlier and the later operation, as long as their rows are
    // kept.
    let again = broker.start_bulk(spec(BulkOperation::Cancel, "n")).await.id;
    broker.ended_bulk(again).await;
    let reason = explained().await;
    assert!(reason.contains(&format!("Bulk operation {again} ended the job.")) && reason.ends_with(&by), "{reason}");
    broker.sql("DELETE FROM howdah.bulk").await;
    let reason = explained().await;
    assert!(reason.contains(&format!(" Bulk operation {cancel} had ended the job at ")), "{reason}");
}
