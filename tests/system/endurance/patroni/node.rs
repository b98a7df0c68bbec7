//! A node of the cluster: one Patroni and the Postgres that it manages.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use howdah_cli::postgres::Binaries;
use rustix::process::Signal;
use tokio::{
    process::{Child, Command},
    time::timeout,
};
use tokio_postgres::{Client, NoTls};

use super::super::{brokers::send_signal, record::diary};
use crate::support::signal_postgres;

/// Paths of the programs and files that all nodes of the cluster share.
pub(super) struct Setup {
    pub(super) python: PathBuf,
    pub(super) etcd: SocketAddr,
    pub(super) directory: PathBuf,
    pub(super) user: Option<(u32, u32)>,
}

pub(in super::super) struct Node {
    pub(in super::super) name: String,
    pub(super) postgres: SocketAddr,
    pub(super) api: SocketAddr,
    data: PathBuf,
    patroni: Option<Child>,
}

/// Configuration of the Patroni cluster. 20 s is the lowest `ttl` that Patroni accepts.
const RULES: &str = r#"{
    "ttl": 20, "loop_wait": 2, "retry_timeout": 3, "primary_start_timeout": 0,
    "synchronous_mode": true, "maximum_lag_on_failover": 1048576,
    "postgresql": {
        "use_pg_rewind": true, "use_slots": true,
        "parameters": {
            "max_connections": 150, "max_wal_size": "2GB", "wal_keep_size": "512MB", "shared_buffers": "64MB",
            "wal_log_hints": "on", "hot_standby": "on"
        }
    }
}"#;

impl Node {
    /// Writes the configuration of a node without starting it.
    pub(super) fn prepare(setup: &Setup, name: &str, [postgres, api]: [SocketAddr; 2]) -> Self {
        let data = setup.directory.join(name);
        let rules: serde_json::Value = serde_json::from_str(RULES).expect("rules");
        let trust =
            ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"];
        // Patroni reads YAML, and JSON is YAML.
        let configuration = serde_json::json!({
            "scope": "howdah",
            "name": name,
            "restapi": { "listen": api, "connect_address": api },
            "etcd3": { "host": setup.etcd },
            "bootstrap": { "dcs": rules, "initdb": ["data-checksums", { "encoding": "UTF8" }, { "locale": "C" }] },
            "postgresql": {
                "listen": postgres,
                "connect_address": postgres,
                "data_dir": data,
                "bin_dir": Binaries::find(None).expect("Postgres").bin_dir(),
                "pgpass": setup.directory.join(format!("{name}.pgpass")),
                "pg_hba": trust,
                "parameters": { "unix_socket_directories": setup.directory },
                "authentication": {
                    "superuser": { "username": "postgres", "password": "unused" },
                    "replication": { "username": "replicator", "password": "unused" }
                },
                "remove_data_directory_on_rewind_failure": true,
                "remove_data_directory_on_diverged_timelines": true
            },
            "watchdog": { "mode": "off" }
        });
        fs::write(Self::configuration(setup, name), configuration.to_string()).expect("a configuration");
        Self { name: name.into(), postgres, api, data, patroni: None }
    }

    pub(super) fn configuration(setup: &Setup, name: &str) -> PathBuf {
        setup.directory.join(format!("{name}.json"))
    }

    /// Starts Patroni, which starts Postgres.
    pub(super) fn start(&mut self, setup: &Setup) {
        let mut command = as_user(setup.user, &setup.python);
        command.args(["-m", "patroni"]).arg(Self::configuration(setup, &self.name));
        command.stdout(Stdio::null()).stderr(diary(&setup.directory, &self.name));
        self.patroni = Some(command.spawn().expect("start patroni"));
    }

    /// Whether the node currently responds as a primary.
    pub(in super::super) async fn is_primary(&self) -> bool {
        self.ask("SELECT current_setting('transaction_read_only') = 'off' AND NOT pg_is_in_recovery()")
            .await
            .unwrap_or(false)
    }

    /// Runs a query at this node, whatever its role, and returns the result; `None` if the node does not respond.
    pub(in super::super) async fn ask(&self, sql: &str) -> Option<bool> {
        let asking = async { self.connect("postgres").await?.query_one(sql, &[]).await };
        Some(timeout(Duration::from_secs(1), asking).await.ok()?.ok()?.get(0))
    }

    pub(in super::super) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}?application_name=probe", self.postgres)
    }

    pub(in super::super) async fn connect(&self, database: &str) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url(database), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Sends a signal to the node's Patroni.
    pub(super) fn signal_patroni(&self, signal: Signal) {
        send_signal(self.patroni.as_ref().expect("Patroni runs"), signal);
    }

    /// Kills the node's Patroni with SIGKILL, but not its Postgres.
    pub(super) async fn kill_patroni(&mut self) {
        let mut patroni = self.patroni.take().expect("Patroni runs");
        patroni.kill().await.expect("kill");
    }

    /// Sends a signal to all processes of the node's Postgres.
    pub(super) fn signal_postgres(&self, signal: Signal) {
        signal_postgres(&self.data, signal);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Kill Patroni first, because it would restart Postgres.
        drop(self.patroni.take());
        self.signal_postgres(Signal::KILL);
    }
}

/// Returns a command that runs a program as this user. The program gets SIGTERM when this process ends, and is killed
/// when dropped.
pub(super) fn as_user(user: Option<(u32, u32)>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]);
    if let Some((uid, gid)) = user {
        command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"]);
    }
    command.arg(program).current_dir("/").kill_on_drop(true).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C").env("PYTHONUNBUFFERED", "1");
    command
}
