//! Tests failover to another primary, while the former primary keeps running as a primary or does not respond.

use rustix::process::Signal;

use crate::support::*;

/// Asserts that jobs are enqueued and delivered at the promoted replica. The old primary still accepts connections and
/// statements, so the broker notices the promotion only by comparing the servers.
async fn goes_on_at_the_replica(both: &Replicated, broker: &TestBroker) {
    let job = async || broker.enqueue("mail").answer().await.is_ok();
    eventually("a job that is stored by the new primary", job).await;
    broker.worker("mail").window(10).await.next().await;
    both.at_replica().until("a lease at the promoted replica", "SELECT count(*) > 0 FROM howdah.leased").await;
}

#[tokio::test]
async fn a_broker_leaves_a_primary_that_still_accepts_writes_for_the_promoted_replica() {
    let both = Replicated::synchronous(&cluster_config()).await;
    let broker = TestBroker::on_with(&both.at_primary(), |c| c.database_url = both.url()).await;
    broker.enqueue("mail").await;
    both.promote().await;
    goes_on_at_the_replica(&both, &broker).await;
    // Ignores sessions that wait for synchronous replication, because they do not notice that their client has gone.
    let nobody = "SELECT count(*) = 0 FROM pg_stat_activity
                  WHERE application_name LIKE 'howdah%' AND wait_event IS DISTINCT FROM 'SyncRep'";
    both.at_primary().until("no sessions at the former primary", nobody).await;
    // The new broker's URL names the old primary first, which still accepts writes. The broker must choose the new primary.
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

#[tokio::test]
async fn jobs_of_a_new_type_that_the_promoted_replica_lacks_reach_workers_of_all_brokers() {
    let both = Replicated::start(&cluster_config()).await;
    let broker = TestBroker::on_with(&both.at_primary(), |c| c.database_url = both.url()).await;
    let replayed = "SELECT count(*) = 1 FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()";
    both.at_primary().until("a replica with the schema", replayed).await;
    both.at_replica().sql("ALTER SYSTEM SET primary_conninfo = ''").await;
    both.at_replica().sql("SELECT pg_reload_conf()").await;
    both.at_primary().until("the end of the replication", "SELECT count(*) = 0 FROM pg_stat_replication").await;
    broker.enqueue("pay").await;
    let mut connected = broker.worker("pay").window(100).await;
    connected.next().await;
    signal_postgres(both.primary.data_dir(), Signal::QUIT);
    both.promote().await;
    let stored = "SELECT (SELECT count(*) FROM howdah.ready) + (SELECT count(*) FROM howdah.leased)";
    eventually("a job that is stored by the new primary", async || {
        broker.enqueue("pay").answer().await.is_ok() && both.at_replica().count(stored).await > 0
    })
    .await;
    connected.next().await;
    drop(connected);
    broker.enqueue("pay").await;
    let another = TestBroker::on_with(&both.at_replica(), |c| c.database_url = both.url()).await;
    another.worker("pay").await.next().await;
}
