//! Lists, searches and statistics from a replica: as long as it is there and not too far behind, and never older than what was
//! changed here.

use howdah_cli::postgres::StopMode;
use howdah_proto::v1::ListJobsRequest;
use howdah_server::{config::Config, store::Store};

use crate::{support::*, ui::client::Browser};

/// A broker that reads a replica, once it does.
async fn reading(both: &Replicated, max_lag: std::time::Duration) -> TestBroker {
    let broker = TestBroker::on_with(&both.at_primary(), |config| {
        config.read_database_url = Some(both.at_replica().url);
        config.read_replica_max_lag = max_lag;
    })
    .await;
    until_read(&broker, true).await;
    broker
}

/// Until the broker says that it reads the replica, or that it does not.
async fn until_read(broker: &TestBroker, is_read: bool) {
    let line = format!("howdah_read_replica_used {}", u8::from(is_read));
    eventually(&line, async || broker.metrics().await.lines().any(|said| said == line)).await;
}

/// How far the replica is behind, as the broker says.
async fn lag(broker: &TestBroker) -> f64 {
    let metrics = broker.metrics().await;
    let said = metrics.lines().find_map(|line| line.strip_prefix("howdah_read_replica_lag_seconds "));
    said.expect("the metric").parse().expect("a number")
}

/// How many jobs of `mail` a list has.
async fn listed(broker: &TestBroker) -> usize {
    let request = ListJobsRequest { task_type: "mail".into(), ..ListJobsRequest::default() };
    broker.jobs().list_jobs(request).await.expect("a list").into_inner().jobs.len()
}

#[tokio::test]
async fn lists_come_from_the_replica_until_something_is_changed_here() {
    let both = Replicated::start(&cluster_config()).await;
    let broker = reading(&both, HOUR).await;
    let first = broker.enqueue("mail").await;
    eventually("a job in a list", async || listed(&broker).await == 1).await;
    let browser = Browser::at(&broker);
    eventually("a replica that is read, on the page", async || {
        let shown = browser.get("/ui/").await.body;
        ["Read replica", "s behind"].iter().all(|words| shown.contains(words)) && !shown.contains("not read")
    })
    .await;

    both.at_replica().sql("SELECT pg_wal_replay_pause()").await;
    both.at_replica().until("a pause", "SELECT pg_get_wal_replay_pause_state() = 'paused'").await;
    let second = broker.enqueue("mail").await;
    // On a slow machine the broker may not know for a moment how far the replica is, and read the primary.
    eventually("a list of the replica, without the second one", async || listed(&broker).await == 1).await;
    assert_eq!(broker.job(second).await.id, second, "a single job comes from the primary");

    // What was changed here is seen at once, though the replica does not know of it.
    assert_eq!(broker.cancel(&[first]).await, [first]);
    assert_eq!(listed(&broker).await, 2, "after a change the primary is read");
    both.at_replica().sql("SELECT pg_wal_replay_resume()").await;
    eventually("a replica that has it all", async || lag(&broker).await < 1.5).await;
    assert_eq!(listed(&broker).await, 2);
}

#[tokio::test]
async fn a_replica_that_is_too_far_behind_is_not_read_until_it_has_caught_up() {
    let both = Replicated::start(&cluster_config()).await;
    let broker = reading(&both, secs(2)).await;
    both.at_replica().sql("SELECT pg_wal_replay_pause()").await;
    both.at_replica().until("a pause", "SELECT pg_get_wal_replay_pause_state() = 'paused'").await;
    // Something that it does not get.
    broker.enqueue("mail").await;
    eventually("a replica that is not read since it is behind", async || {
        lag(&broker).await > 2.0 && broker.metrics().await.contains("\nhowdah_read_replica_used 0\n")
    })
    .await;
    assert_eq!(listed(&broker).await, 1, "the primary is read");
    Browser::at(&broker).get("/ui/").await.has(&["Read replica not read"]);
    both.at_replica().sql("SELECT pg_wal_replay_resume()").await;
    until_read(&broker, true).await;
    assert_eq!(listed(&broker).await, 1);
}

#[tokio::test]
async fn a_replica_that_is_away_costs_no_answer() {
    let mut both = Replicated::start(&cluster_config()).await;
    let broker = reading(&both, HOUR).await;
    broker.enqueue("mail").await;
    both.replica.stop(StopMode::Immediate).await;
    assert_eq!(listed(&broker).await, 1, "whether or not the broker knows already");
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
