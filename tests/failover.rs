//! Another server becomes the primary, and the former one is not told, or does not answer any more.

use rustix::process::Signal;

use crate::support::*;

/// Postgres refuses nothing here and ends nothing: only a look at the others tells that it is not the primary any more.
async fn goes_on_at_the_replica(both: &Replicated, broker: &TestBroker) {
    let job = async || broker.enqueue("mail").answer().await.is_ok();
    eventually("a job that is stored by the new primary", job).await;
    broker.worker("mail").window(10).await.next().await;
    both.at_replica().until("a lease there", "SELECT count(*) > 0 FROM howdah.leased").await;
}

#[tokio::test]
async fn a_primary_that_was_not_told_of_its_end_is_left_for_the_one_that_was_promoted() {
    let both = Replicated::synchronous(&cluster_config()).await;
    let broker = TestBroker::on_with(&both.at_primary(), |c| c.database_url = both.url()).await;
    broker.enqueue("mail").await;
    both.promote().await;
    goes_on_at_the_replica(&both, &broker).await;
    // What waits for the standby there does not notice that nobody waits for the answer any more.
    let nobody = "SELECT count(*) = 0 FROM pg_stat_activity
                  WHERE application_name LIKE 'howdah%' AND wait_event IS DISTINCT FROM 'SyncRep'";
    both.at_primary().until("nobody at the former primary", nobody).await;
    // Whoever starts now is not led there either, though it is the first in the list and takes writes.
    let another = TestBroker::on_with(&both.at_replica(), |c| c.database_url = both.url()).await;
    another.enqueue("mail").await;
}

#[tokio::test]
async fn a_frozen_primary_is_left_for_the_one_that_was_promoted() {
    let both = Replicated::synchronous(&cluster_config()).await;
    let broker = TestBroker::on_with(&both.at_primary(), |c| c.database_url = both.url()).await;
    broker.enqueue("mail").await;
    signal_postgres(both.primary.data_dir(), Signal::STOP);
    both.promote().await;
    goes_on_at_the_replica(&both, &broker).await;
    let another = TestBroker::on_with(&both.at_replica(), |c| c.database_url = both.url()).await;
    another.enqueue("mail").await;
    signal_postgres(both.primary.data_dir(), Signal::CONT);
}
