//! Tests networks that lose packets, and many concurrent streams.

use std::time::Duration;

use howdah_cli::postgres::Cluster;
use tokio::time::sleep;

use super::{
    load::{Load, Plan, durable},
    mix::Mix,
    proxy::{Proxy, Target},
};
use crate::support::socket_dir;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn with_packets_to_postgres_lost_calls_are_answered_and_nothing_is_lost() {
    let cluster = Cluster::start(durable()).await.expect("Postgres");
    cluster.create_database("app").await.expect("database");
    let proxy = Proxy::start(Target::Unix(socket_dir(&cluster).join(".s.PGSQL.5432"))).await;
    let mut plan = Plan::new(Mix::All, 150);
    // The timeout is longer than the longest permitted response time, so that a missing response is noticed.
    plan.patience = Duration::from_secs(60);
    let mut load = Load::start_on(plan, cluster, &format!("postgres://howdah@{}/app", proxy.address)).await;
    load.produce();
    for _ in 0..2 {
        sleep(Duration::from_secs(10)).await;
        proxy.cut();
        sleep(Duration::from_secs(45)).await;
        proxy.mend();
        // Wait until jobs are accepted again after the outage.
        load.progress(500).await;
    }
    let found = load.check("packets between brokers and Postgres lost for 45 s", 2).await;
    assert!(found.refused.keys().all(|code| code == "broker:Unavailable"), "{:?}", found.refused);
    assert!(found.refused.contains_key("broker:Unavailable"));
    // A call may take `database_timeout` (15 s) and the delay of a busy machine, but must not wait for the end of the outage.
    let longest = found.longest_call;
    assert!(longest < Duration::from_secs(25), "a call took {longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn jobs_of_half_open_workers_go_to_others_and_the_workers_come_back() {
    let mut load = Load::start(Plan::new(Mix::All, 120)).await;
    // Starts two additional workers, which connect to each broker through a separate proxy.
    let mut proxies = Vec::new();
    for broker in load.addresses() {
        proxies.push(Proxy::start(Target::Tcp(broker)).await);
    }
    let by_proxy: Vec<String> = proxies.iter().map(|proxy| proxy.address.clone()).collect();
    for n in 0..2 {
        let worker = load.worker_at(n, by_proxy.clone());
        load.workers.push(Some(worker));
    }
    load.produce();
    for _ in 0..3 {
        sleep(Duration::from_secs(5)).await;
        proxies.iter().for_each(Proxy::cut);
        let client = load.database.connect().await;
        let before: i64 =
            client.query_one("SELECT (extract(epoch FROM now()) * 1000)::bigint", &[]).await.expect("a time").get(0);
        // Brokers notice a silent worker after 10 s (`liveness`), and no job takes longer than a second. A busy machine may
        // need longer.
        let sql = "SELECT count(*) FROM howdah.leased WHERE leased_at < to_timestamp($1::bigint / 1000.0)";
        let mut left = i64::MAX;
        for _ in 0..30 {
            sleep(Duration::from_secs(1)).await;
            left = client.query_one(sql, &[&before]).await.expect(sql).get(0);
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "unreachable workers still hold leases");
        proxies.iter().for_each(Proxy::mend);
    }
    load.check("a half-open worker", 3).await;
}
