//! Tests lists, searches and statistics that brokers read from a read replica while it is available and its lag is small. The
//! results are never older than changes made through the same broker.

use howdah_cli::postgres::StopMode;
use howdah_core::config::Config;
use howdah_engine::store::Store;
use howdah_proto::v1::ListJobsRequest;

use crate::{support::*, ui::client::Browser};

/// Starts a broker with a read replica and waits until it uses the replica.
async fn reading(both: &Replicated, max_lag: std::time::Duration) -> TestBroker {
    let broker = TestBroker::on_with(&both.at_primary(), |config| {
        config.read_database_url = Some(both.at_replica().url);
        config.read_replica_max_lag = max_lag;
    })
    .await;
    until_read(&broker, true).await;
    broker
}

/// Waits until the broker's metrics report that it uses the replica, or that it does not.
async fn until_read(broker: &TestBroker, is_read: bool) {
    let line = format!("howdah_read_replica_used {}", u8::from(is_read));
    eventually(&line, async || broker.metrics().await.lines().any(|shown| shown == line)).await;
}

/// Replication lag that the broker's metrics report, in seconds.
async fn lag(broker: &TestBroker) -> f64 {
    let metrics = broker.metrics().await;
    let lag = metrics.lines().find_map(|line| line.strip_prefix("howdah_read_replica_lag_seconds "));
    lag.expect("the metric").parse().expect("a number")
}

/// Number of jobs of type `mail` that `ListJobs` returns.
async fn listed(broker: &TestBroker) -> usize {
    let request = ListJobsRequest { task_type: "mail".into(), ..ListJobsRequest::default() };
    broker.jobs().list_jobs(request).await.expect("a list").into_inner().jobs.len()
}

#[tokio::test]
async fn lists_come_from_the_replica_until_this_broker_makes_a_change() {
    let both = Replicated::start(&cluster_config()).await;
    let broker = reading(&both, HOUR).await;
    let first = broker.enqueue("mail").await;
    eventually("a job in a list", async || listed(&broker).await == 1).await;
    let browser = Browser::at(&broker);
    eventually("a page that shows the replica in use", async || {
        let shown = browser.get("/ui/").await.body;
        ["Read replica", "s behind"].iter().all(|words| shown.contains(words)) && !shown.contains("not used")
    })
    .await;

    both.at_replica().sql("SELECT pg_wal_replay_pause()").await;
    both.at_replica().until("the pause of the replay", "SELECT pg_get_wal_replay_pause_state() = 'paused'").await;
    let second = broker.enqueue("mail").await;
    // Polls, because on a slow machine the broker may briefly not know the lag, and then reads from the primary.
    eventually("a list of the replica, without the second job", async || listed(&broker).await == 1).await;
    assert_eq!(broker.job(second).await.id, second, "a single job comes from the primary");

    // A change made through this broker is visible at once, although the replica does not have it yet.
    assert_eq!(broker.cancel(&[first]).await, [first]);
    assert_eq!(listed(&broker).await, 2, "after a change the broker must read the primary");
    both.at_replica().sql("SELECT pg_wal_replay_resume()").await;
    eventually("a replica that has caught up", async || lag(&broker).await < 1.5).await;
    assert_eq!(listed(&broker).await, 2);
}

#[tokio::test]
async fn a_replica_that_is_too_far_behind_is_not_read_until_it_has_caught_up() {
    let both = Replicated::start(&cluster_config()).await;
    let broker = reading(&both, secs(2)).await;
    both.at_replica().sql("SELECT pg_wal_replay_pause()").await;
    both.at_replica().until("the pause of the replay", "SELECT pg_get_wal_replay_pause_state() = 'paused'").await;
    // Commits a job that the replica does not show, because its replay is paused.
    broker.enqueue("mail").await;
    eventually("a broker that does not read the lagging replica", async || {
        lag(&broker).await > 2.0 && broker.metrics().await.contains("\nhowdah_read_replica_used 0\n")
    })
    .await;
    assert_eq!(listed(&broker).await, 1, "the broker must read the primary");
    Browser::at(&broker).get("/ui/").await.has(&["Read replica not used"]);
    both.at_replica().sql("SELECT pg_wal_replay_resume()").await;
    until_read(&broker, true).await;
    assert_eq!(listed(&broker).await, 1);
}

#[tokio::test]
async fn lists_are_answered_while_the_replica_is_down() {
    let mut both = Replicated::start(&cluster_config()).await;
    let broker = reading(&both, HOUR).await;
    broker.enqueue("mail").await;
    both.replica.stop(StopMode::Immediate).await;
    assert_eq!(listed(&broker).await, 1, "a list right after the stop of the replica");
    until_read(&broker, false).await;
    assert_eq!(listed(&broker).await, 1);
    both.replica.restart().await.expect("restart");
    until_read(&broker, true).await;
}

#[tokio::test]
async fn a_replica_of_another_database_is_not_read() {
    let (this, other) = (database().await, database().await);
    other.sql("UPDATE howdah.identity SET id = gen_random_uuid()").await;
    for (replica, is_read) in [(&this, true), (&other, false)] {
        let mut config = Config::new(&this.url);
        config.read_database_url = Some(replica.url.clone());
        let store = Store::new(&config).expect("a store");
        store.measure_replica().await.expect("the primary answers");
        assert_eq!(store.replica_state().map(|state| state.is_read), Some(is_read));
    }
}
