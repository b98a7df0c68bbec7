//! A Postgres primary and its streaming replica.

use std::{
    fs,
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use howdah_cli::postgres::{Cluster, ClusterConfig};
use rustix::process::{Pid, Signal, kill_process};

use super::{TestDatabase, open_directory};

/// A primary and a replica with a database `app`.
pub struct Replicated {
    pub primary: Cluster,
    pub replica: Cluster,
    _directory: tempfile::TempDir,
}

impl Replicated {
    /// Starts both servers, with asynchronous replication.
    pub async fn start(config: &ClusterConfig) -> Self {
        let directory = open_directory();
        let primary = Cluster::start(config.clone()).await.expect("Postgres");
        primary.create_database("app").await.expect("database");
        let data = directory.path().join("replica");
        copy(&primary, &data);
        let config = ClusterConfig { data_dir: Some(data), ..config.clone() };
        let replica = Cluster::start(config).await.expect("a replica");
        Self { primary, replica, _directory: directory }
    }

    /// Starts both servers with synchronous replication.
    pub async fn synchronous(config: &ClusterConfig) -> Self {
        // Without fsync, commits would not wait for the replica.
        let both = Self::start(&ClusterConfig { fsync: true, ..config.clone() }).await;
        let primary = both.at_primary();
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        primary.sql("SELECT pg_reload_conf()").await;
        let synchronous = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
        primary.until("a synchronous replica", synchronous).await;
        both
    }

    pub fn at_primary(&self) -> TestDatabase {
        TestDatabase { url: self.primary.url("app") }
    }

    pub fn at_replica(&self) -> TestDatabase {
        TestDatabase { url: self.replica.url("app") }
    }

    /// Returns a database URL that names both servers, as brokers get it.
    pub fn url(&self) -> String {
        let [primary, replica] = [&self.primary, &self.replica].map(socket_dir);
        format!(
            "postgres://howdah@/app?host={},{}&target_session_attrs=read-write",
            primary.display(),
            replica.display()
        )
    }

    /// Promotes the replica; the old primary keeps running as a primary.
    pub async fn promote(&self) {
        self.at_replica().sql("SELECT pg_promote()").await;
    }
}

/// Makes a base backup whose server will follow the primary.
fn copy(primary: &Cluster, to: &Path) {
    let owner = fs::metadata(primary.data_dir()).expect("the data directory");
    fs::DirBuilder::new().mode(0o700).create(to).expect("a directory");
    std::os::unix::fs::chown(to, Some(owner.uid()), Some(owner.gid())).expect("chown");
    let mut command = Command::new(primary.binaries().program("pg_basebackup"));
    command.arg("-h").arg(socket_dir(primary)).args(["-U", "howdah", "-R", "-X", "stream", "-c", "fast", "-D"]).arg(to);
    let status = command.uid(owner.uid()).gid(owner.gid()).current_dir("/").status().expect("pg_basebackup");
    assert!(status.success(), "{status}");
}

/// Returns the socket directory of a private Postgres.
pub fn socket_dir(cluster: &Cluster) -> PathBuf {
    let config: tokio_postgres::Config = cluster.url("app").parse().expect("a URL");
    match config.get_hosts() {
        [tokio_postgres::config::Host::Unix(dir)] => dir.clone(),
        other => panic!("not a socket: {other:?}"),
    }
}

/// Signals all processes of a Postgres, the postmaster first, so that the postmaster starts no other processes. The server may
/// have ended already.
pub fn signal_postgres(data_dir: &Path, signal: Signal) {
    let first = || {
        let text = fs::read_to_string(data_dir.join("postmaster.pid")).ok()?;
        Pid::from_raw(text.lines().next()?.trim().parse().ok()?)
    };
    let Some(first) = first() else { return };
    // Ignore errors, because processes may have ended meanwhile.
    let _ = kill_process(first, signal);
    for child in children(first) {
        let _ = kill_process(child, signal);
    }
}

/// Returns the child processes of a process, as listed in `/proc`.
fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().get().to_string();
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let child = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The process name, in parentheses, may contain spaces.
        let (pid, rest) = (stat.split(' ').next()?, stat.rsplit_once(')')?.1);
        (rest.split_whitespace().nth(1)? == parent).then(|| pid.parse().ok().and_then(Pid::from_raw)).flatten()
    };
    entries.filter_map(child).collect()
}
