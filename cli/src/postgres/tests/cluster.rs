use std::path::PathBuf;

use rustix::process::{Pid, Signal};

use super::super::{Cluster, ClusterConfig, DevError, StopMode};
use super::{guard, open_dir, persistent, query, throw_away};

fn socket_dir(cluster: &Cluster) -> PathBuf {
    let config: tokio_postgres::Config = cluster.url("postgres").parse().unwrap();
    match config.get_hosts() {
        [tokio_postgres::config::Host::Unix(path)] => path.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_throw_away_cluster_leaves_nothing_behind() {
    let cluster = Cluster::start(throw_away()).await.unwrap();
    let (data, sockets) = (cluster.data_dir().to_owned(), socket_dir(&cluster));
    assert!(data.exists() && sockets.exists());
    assert_eq!(query(&cluster, "SELECT current_user::text").await, "howdah");
    drop(cluster);
    assert!(!data.exists() && !data.parent().unwrap().exists() && !sockets.exists());
}

#[tokio::test]
async fn a_persistent_cluster_keeps_its_data_and_stops_cleanly() {
    let base = open_dir();
    let data = base.path().join("data");
    let first = Cluster::start(persistent(&data)).await.unwrap();
    first.create_database("kept").await.unwrap();
    drop(first);
    let second = Cluster::start(persistent(&data)).await.unwrap();
    assert_eq!(query(&second, "SELECT datname::text FROM pg_database WHERE datname = 'kept'").await, "kept");
    let log = std::fs::read_to_string(data.join("postgres.log")).unwrap();
    assert!(log.contains("database system is shut down") && !log.contains("recovery"), "{log}");
}

#[tokio::test]
async fn a_cluster_recovers_under_the_same_url_after_an_immediate_stop() {
    let mut cluster = Cluster::start(throw_away()).await.unwrap();
    let url = cluster.url("postgres");
    cluster.create_database("kept").await.unwrap();
    cluster.stop(StopMode::Immediate).await;
    assert!(tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_err());
    cluster.restart().await.unwrap();
    assert_eq!(cluster.url("postgres"), url);
    assert_eq!(query(&cluster, "SELECT datname::text FROM pg_database WHERE datname = 'kept'").await, "kept");
}

#[tokio::test]
async fn a_cluster_recovers_after_kill_9_of_the_postmaster() {
    let mut cluster = Cluster::start(throw_away()).await.unwrap();
    let before = cluster.pid();
    let pid = Pid::from_raw(before.cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    cluster.restart().await.unwrap();
    assert_ne!(cluster.pid(), before);
    assert_eq!(query(&cluster, "SELECT pg_is_in_recovery()::text").await, "false");
}

#[tokio::test]
async fn a_cluster_may_be_stopped_or_restarted_twice() {
    let mut cluster = Cluster::start(throw_away()).await.unwrap();
    cluster.stop(StopMode::Fast).await;
    cluster.stop(StopMode::Immediate).await;
    cluster.restart().await.unwrap();
    cluster.restart().await.unwrap();
}

#[tokio::test]
async fn a_database_may_have_any_name_and_be_asked_for_twice() {
    let cluster = Cluster::start(throw_away()).await.unwrap();
    let name = "we\"ird /?&=%";
    cluster.create_database(name).await.unwrap();
    cluster.create_database(name).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&cluster.url(name), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let found: String = client.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
    assert_eq!(found, name);
}

#[tokio::test]
async fn given_settings_override_the_defaults_and_a_port_is_in_the_url() {
    let settings = [("work_mem", "7MB"), ("autovacuum_naptime", "33s"), ("port", "6001")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let config = ClusterConfig { settings, max_connections: 400, ..throw_away() };
    let cluster = Cluster::start(config).await.unwrap();
    let expected = [
        ("work_mem", "7MB"),
        ("autovacuum_naptime", "33s"),
        ("max_connections", "400"),
        ("fsync", "off"),
        ("jit", "off"),
        ("listen_addresses", ""),
        ("shared_buffers", "128MB"),
    ];
    for (name, value) in expected {
        assert_eq!(query(&cluster, &format!("SELECT current_setting('{name}')")).await, value, "{name}");
    }
    assert!(cluster.url("x").ends_with("&port=6001"));
}

#[tokio::test]
async fn a_persistent_cluster_with_fsync_has_fsync_on_and_larger_buffers() {
    let base = open_dir();
    let config = ClusterConfig { fsync: true, ..persistent(&base.path().join("data")) };
    let cluster = Cluster::start(config).await.unwrap();
    assert_eq!(query(&cluster, "SELECT current_setting('fsync')").await, "on");
    assert_eq!(query(&cluster, "SELECT current_setting('shared_buffers')").await, "256MB");
}

#[tokio::test]
async fn a_wrong_setting_is_explained_by_the_log() {
    let settings = vec![("no_such_thing".to_owned(), "1".to_owned())];
    let error = Cluster::start(ClusterConfig { settings, ..throw_away() }).await.unwrap_err();
    assert!(matches!(error, DevError::Exited { .. }));
    let message = error.to_string();
    assert!(message.contains("unrecognized configuration parameter \"no_such_thing\""), "{message}");
    assert!(!message.contains('\n'));
}

#[tokio::test]
async fn a_program_that_is_not_a_guard_is_an_error_and_the_start_does_not_hang() {
    let config = ClusterConfig { howdah_binary: Some("/bin/true".into()), ..throw_away() };
    let error = Cluster::start(config).await.unwrap_err();
    assert!(matches!(error, DevError::Exited { .. }), "{error}");
}

#[test]
fn a_guard_refuses_a_parent_that_is_not_its_own() {
    let mut command = std::process::Command::new(guard());
    let output = command.args(["internal-postgres", "1", "fast", "--", "echo", "started"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("has ended") && !text.contains("started\n"), "{text}");
}

#[test]
fn other_commands_do_not_become_the_guard() {
    let run = |args: &[&str]| super::super::run_if_guard(args.iter().map(Into::into));
    assert!(run(&["howdah"]).is_none());
    assert!(run(&["howdah", "serve", "internal-postgres"]).is_none());
    assert!(run(&["howdah", "internal-postgres", "x", "fast", "--", "true"]).is_some());
}
