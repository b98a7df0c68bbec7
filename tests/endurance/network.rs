//! Networks that lose packets, and many streams at once.

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
    // Longer than any answer may take: one that does not come shows.
    plan.patience = Duration::from_secs(60);
    let mut load = Load::start_on(plan, cluster, &format!("postgres://howdah@{}/app", proxy.address)).await;
    load.produce();
    for _ in 0..2 {
        sleep(Duration::from_secs(10)).await;
        proxy.cut();
        sleep(Duration::from_secs(45)).await;
        proxy.mend();
        // It goes on.
        load.progress(500).await;
    }
    let found = load.check("packets between brokers and Postgres lost for 45 s", 2).await;
    assert!(found.refused.keys().all(|code| code == "broker:Unavailable"), "{:?}", found.refused);
    assert!(found.refused.contains_key("broker:Unavailable"));
    // 15 s, and what a busy machine adds; less than the 45 s for which it was cut off.
    let longest = found.longest_call;
    assert!(longest < Duration::from_secs(25), "a call took {longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn the_jobs_of_a_half_open_worker_go_to_others_and_it_comes_back() {
    let mut load = Load::start(Plan::new(Mix::All, 120)).await;
    // Two workers more, each with a network of its own that leads to all brokers.
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
        // 15 s until it is noticed, a second of grace, and what a busy machine adds. No job lasts longer than a second.
        let sql = "SELECT count(*) FROM howdah.leased WHERE leased_at < to_timestamp($1::bigint / 1000.0)";
        let mut left = i64::MAX;
        for _ in 0..30 {
            sleep(Duration::from_secs(1)).await;
            left = client.query_one(sql, &[&before]).await.expect(sql).get(0);
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "jobs are still leased by workers that nobody hears");
        proxies.iter().for_each(Proxy::mend);
    }
    load.check("a half-open worker", 3).await;
}
