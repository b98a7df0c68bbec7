//! The primary is lost and its synchronous replica promoted; a server becomes read-only.

use std::{
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use howdah_cli::postgres::{Binaries, Cluster, StopMode};
use tokio::time::{Instant, sleep};

use super::{
    load::{Load, Plan, durable},
    mix::Mix,
};
use crate::support::{TestDatabase, open_directory, until};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn a_synchronous_replica_that_is_promoted_has_all_that_was_accepted() {
    let dir = open_directory();
    let primary = Cluster::start(durable()).await.expect("Postgres");
    primary.create_database("app").await.expect("database");
    let data = dir.path().join("replica");
    copy(&primary, &data);
    let mut config = durable();
    config.data_dir = Some(data);
    let replica = Cluster::start(config).await.expect("a replica");
    let database = TestDatabase { url: primary.url("app") };
    let admin = database.connect().await;
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await.expect("synchronous");
    admin.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
    until(&database, "a synchronous replica", "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        .await;

    let both = format!(
        "postgres://howdah@/app?host={},{}&target_session_attrs=read-write",
        socket_dir(&primary).display(),
        socket_dir(&replica).display()
    );
    let mut plan = Plan::new(Mix::All, 90);
    plan.patience = Duration::from_secs(40);
    let mut load = Load::start_on(plan, primary, &both).await;
    load.produce();
    sleep(Duration::from_secs(20)).await;
    load.cluster().stop(StopMode::Immediate).await;
    sleep(Duration::from_secs(2)).await;
    let accepted = load.accepted();
    load.database = TestDatabase { url: replica.url("app") };
    let began = Instant::now();
    load.database.connect().await.batch_execute("SELECT pg_promote()").await.expect("promote");
    load.replace(replica);
    load.accept(accepted + 1).await;
    eprintln!("from the promotion to an accepted job: {:?}", began.elapsed());

    sleep(Duration::from_secs(10)).await;
    for _ in 0..3 {
        read_only(&load.database, "on").await;
        sleep(Duration::from_secs(7)).await;
        read_only(&load.database, "off").await;
        let began = Instant::now();
        load.progress(1_000).await;
        eprintln!("from read-write to a thousand accepted jobs: {:?}", began.elapsed());
    }
    load.check("a promoted replica, and read-only for 7 s three times", 1).await;
}

/// What a demoted primary looks like to those who are connected.
async fn read_only(database: &TestDatabase, how: &str) {
    let client = database.connect().await;
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {how}");
    client.batch_execute("SET default_transaction_read_only = off").await.expect("for us");
    client.batch_execute(&set).await.expect("set");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reload");
}

/// A copy that follows its primary.
fn copy(primary: &Cluster, to: &Path) {
    let owner = std::fs::metadata(primary.data_dir()).expect("the data directory");
    std::fs::DirBuilder::new().mode(0o700).create(to).expect("a directory");
    std::os::unix::fs::chown(to, Some(owner.uid()), Some(owner.gid())).expect("chown");
    let program = Binaries::find(None).expect("Postgres").program("pg_basebackup");
    let mut command = Command::new(program);
    command.arg("-h").arg(socket_dir(primary)).args(["-U", "howdah", "-R", "-X", "stream", "-c", "fast", "-D"]).arg(to);
    let status = command.uid(owner.uid()).gid(owner.gid()).current_dir("/").status().expect("pg_basebackup");
    assert!(status.success(), "{status}");
}

/// Where the socket of a private Postgres is.
pub(super) fn socket_dir(cluster: &Cluster) -> PathBuf {
    let config: tokio_postgres::Config = cluster.url("app").parse().expect("a URL");
    match config.get_hosts() {
        [tokio_postgres::config::Host::Unix(dir)] => dir.clone(),
        other => panic!("not a socket: {other:?}"),
    }
}
