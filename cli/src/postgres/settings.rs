use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::fetch::Fetch;

/// The superuser of a private cluster.
pub const SUPERUSER: &str = "howdah";

/// Default port of Postgres, which is part of the socket's name.
pub(super) const PORT: &str = "5432";

/// Configuration of a private Postgres.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Data directory, created if needed. `None` for a temporary directory that is removed at the end.
    pub data_dir: Option<PathBuf>,
    /// Parent of the temporary directory. Defaults to the system's directory for temporary files.
    pub temporary_dir: PathBuf,
    /// Bin directory of the Postgres to run. `None`: use the Postgres that [`Binaries::find`] finds, or else a downloaded one.
    pub binaries: Option<PathBuf>,
    /// Download policy if Postgres is not installed.
    pub fetch: Fetch,
    /// Whether Postgres syncs to disk. False is faster, but a crash of the machine destroys the cluster, so use it only for
    /// temporary data.
    pub fsync: bool,
    /// Additional Postgres settings. They override the defaults, except `unix_socket_directories`.
    pub settings: Vec<(String, String)>,
    /// Value of `max_connections`.
    pub max_connections: u32,
    /// Program with the hidden command (see [`run_if_guard`](super::run_if_guard)). `None` for the running program.
    pub howdah_binary: Option<PathBuf>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            data_dir: None,
            temporary_dir: std::env::temp_dir(),
            binaries: None,
            fetch: Fetch::default(),
            fsync: true,
            settings: Vec::new(),
            max_connections: 100,
            howdah_binary: None,
        }
    }
}

/// Arguments of `postgres`. The last `-c` of a setting wins: the defaults come first, then the caller's settings, then the
/// socket directory, because the URL of the cluster names it.
pub(super) fn arguments(config: &ClusterConfig, data_dir: &Path, socket_dir: &Path) -> Vec<OsString> {
    let mut settings = tuned(config);
    if !config.fsync {
        settings.extend(["fsync", "synchronous_commit", "full_page_writes"].map(|name| (name, "off".to_owned())));
    }
    let mut arguments = vec!["-D".into(), data_dir.into()];
    let mut set = |name: &str, value: OsString| {
        let mut argument = OsString::from(format!("{name}="));
        argument.push(value);
        arguments.extend(["-c".into(), argument]);
    };
    for (name, value) in settings {
        set(name, value.into());
    }
    for (name, value) in &config.settings {
        set(name, value.into());
    }
    set("unix_socket_directories", socket_dir.into());
    arguments
}

/// Settings for a laptop: enough memory to be fast, few checkpoints, and the frequent vacuuming that a queue needs.
fn tuned(config: &ClusterConfig) -> Vec<(&'static str, String)> {
    let shared_buffers = if config.data_dir.is_some() { "256MB" } else { "128MB" };
    let mut settings: Vec<_> = [
        ("listen_addresses", ""),
        ("port", PORT), // otherwise PGPORT would set it
        ("shared_buffers", shared_buffers),
        ("max_wal_size", "2GB"),
        ("wal_compression", "off"),
        ("checkpoint_timeout", "15min"),
        ("checkpoint_completion_target", "0.9"),
        ("autovacuum", "on"),
        ("autovacuum_naptime", "10s"),
        ("jit", "off"),
        ("logging_collector", "off"), // standard error is the log
        ("log_destination", "stderr"),
        ("lc_messages", "C"),
        ("cluster_name", "howdah"),
        // The superuser has the same name as the broker's schema. With "$user" first, other tables would be created in that schema.
        ("search_path", "public"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec();
    settings.push(("max_connections", config.max_connections.to_string()));
    settings
}

/// The port set by the caller, or the default.
pub(super) fn port(config: &ClusterConfig) -> String {
    let setting = config.settings.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case("port"));
    setting.map_or_else(|| PORT.to_owned(), |(_, port)| port.trim().to_owned())
}
