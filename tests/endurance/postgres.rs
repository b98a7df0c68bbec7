//! Postgres stops hard, or loses its connections.

use std::time::Duration;

use howdah_server::dev::StopMode;
use tokio::time::{Instant, sleep};

use super::{
    load::{Load, Plan},
    mix::Mix,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn postgres_stopped_hard_thirty_times_loses_nothing() {
    let mut load = Load::start(Plan::new(Mix::All, 120)).await;
    load.produce();
    let mut longest = Duration::ZERO;
    for _ in 0..30 {
        load.pause(Duration::from_millis(1_500)).await;
        load.cluster.stop(StopMode::Immediate).await;
        load.cluster.restart().await.expect("restart");
        let ready = Instant::now();
        load.progress(1).await;
        longest = longest.max(ready.elapsed());
    }
    eprintln!("longest from a ready Postgres to an accepted job: {longest:?}");
    load.check("Postgres stop -m immediate", 30).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn backends_ended_five_times_a_second_lose_nothing() {
    let mut load = Load::start(Plan::new(Mix::All, 90)).await;
    load.produce();
    let killer = load.database.connect().await;
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
               ORDER BY random() LIMIT 1) a";
    let mut ended = 0;
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        ended += killer.query_one(sql, &[]).await.expect(sql).get::<_, i64>(0);
        sleep(Duration::from_millis(200)).await;
    }
    load.check("pg_terminate_backend", ended as usize).await;
}
