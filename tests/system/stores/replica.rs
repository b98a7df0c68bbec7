//! Tests two stores, one of which has a read replica.

use std::io::Write as _;

use howdah_proto::v1::{ListJobsRequest, ListStoresRequest, Store};
use tempfile::NamedTempFile;

use super::{
    calls::{at, enqueue_at},
    empty,
};
use crate::{support::*, ui::client::Browser};

/// Starts a broker with a configuration file as users write it.
async fn serving(shop: &TestDatabase, mail: &Replicated) -> ServingProgram {
    let text = format!(
        "read_replica_max_lag = '1h'\n\
         [[stores]]\nname = 'shop'\ndatabase_url = '{}'\n\
         [[stores]]\nname = 'mail'\ndatabase_url = '{}'\nread_database_url = '{}'\n",
        shop.url,
        mail.at_primary().url,
        mail.at_replica().url
    );
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("write");
    let broker = Program::serve_file(file, shop).await;
    let is_read = "howdah_read_replica_used{store=\"mail\"} 1";
    eventually(is_read, async || broker.metrics().await.lines().any(|line| line == is_read)).await;
    broker
}

/// Number of jobs that `ListJobs` returns for one store, or for all stores if `store` is empty.
async fn listed(broker: &Service, store: &str) -> usize {
    let request = ListJobsRequest { task_type: "t".into(), ..ListJobsRequest::default() };
    with_timeout("a list", broker.jobs().list_jobs(at(store, request))).await.expect("a list").into_inner().jobs.len()
}

async fn stores(broker: &Service) -> Vec<Store> {
    let answer = with_timeout("the stores", broker.stores().list_stores(ListStoresRequest::default())).await;
    answer.expect("the stores").into_inner().stores
}

#[tokio::test]
async fn lists_of_a_store_come_from_its_replica_and_those_of_the_other_do_not() {
    let (shop, mail) = (empty("read_shop").await, Replicated::start(&cluster_config()).await);
    let broker = serving(&shop, &mail).await;
    for store in ["shop", "mail"] {
        enqueue_at(&broker, store, "t").await;
    }
    eventually("a list with a job of each store", async || listed(&broker, "").await == 2).await;

    mail.at_replica().sql("SELECT pg_wal_replay_pause()").await;
    mail.at_replica().until("the pause of the replay", "SELECT pg_get_wal_replay_pause_state() = 'paused'").await;
    let mut second = 0;
    for store in ["shop", "mail"] {
        second = enqueue_at(&broker, store, "t").await;
    }
    assert_eq!(listed(&broker, "shop").await, 2, "a list of the store without a replica");
    // Polls, because on a slow machine the broker may briefly not know the lag, and then reads from the primary.
    eventually("a list of the replica, without the second job", async || listed(&broker, "mail").await == 1).await;
    eventually("a list of all stores, without the second job of mail", async || listed(&broker, "").await == 3).await;
    assert_eq!(broker.job(second).await.id, second, "a single job comes from the primary");

    mail.at_replica().sql("SELECT pg_wal_replay_resume()").await;
    eventually("a replica that has caught up", async || listed(&broker, "mail").await == 2).await;
}

#[tokio::test]
async fn the_lag_of_a_replica_is_listed_with_its_store() {
    let (shop, mail) = (empty("lag_shop").await, Replicated::start(&cluster_config()).await);
    let broker = serving(&shop, &mail).await;
    // Polls, because on a slow machine the broker may briefly not know the lag.
    let known = async || {
        let [of_shop, of_mail] = &stores(&broker).await[..] else { panic!("two stores") };
        assert!(of_shop.read_replica.is_none());
        of_mail.read_replica.as_ref().is_some_and(|replica| replica.used && replica.lag.is_some())
    };
    eventually("the lag of the replica", known).await;

    let list = async |more: &[&str]| run(&[&["store", "list", "--server", &broker.grpc], more].concat(), b"").await.1;
    let table = async || {
        let table = list(&[]).await;
        let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        assert!(table.lines().next().is_some_and(|heading| heading.contains("READ REPLICA")), "{table}");
        assert!(!line("shop").contains("behind"), "{table}");
        line("mail").ends_with(" behind")
    };
    eventually("the lag in the table", table).await;
    let json = async || {
        let json = list(&["--json"]).await;
        json.lines().count() == 2 && json.matches("\"read_replica\":").count() == 1 && json.contains("\"used\":true")
    };
    eventually("the lag as JSON", json).await;

    let shown = ["Read replica</th>", " behind</td>", " s behind (store mail)"];
    Browser::new(&broker).until_has("/ui/storage", &shown).await;
}
