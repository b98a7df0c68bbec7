use std::ffi::OsString;
use std::path::Path;

use super::cluster::ClusterConfig;

/// The default port of Postgres, and the number in the socket's name.
pub(super) const PORT: &str = "5432";

/// The arguments of `postgres`. A later `-c` overrides an earlier one: first ours, then the caller's, then those that
/// the URL depends on.
pub(super) fn arguments(
    config: &ClusterConfig,
    data_dir: &Path,
    socket_dir: &Path,
    with_statistics: bool,
) -> Vec<OsString> {
    let mut settings = tuned(config);
    if with_statistics {
        settings.push(("shared_preload_libraries", "pg_stat_statements".to_owned()));
    }
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

/// For a laptop: enough memory to be fast, few checkpoints, and frequent vacuuming, which a queue needs.
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
        // The superuser has the name of the broker's schema. With "$user" first, other tables would be created in it.
        ("search_path", "public"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec();
    settings.push(("max_connections", config.max_connections.to_string()));
    settings
}

/// The port: the caller's, or ours.
pub(super) fn port(config: &ClusterConfig) -> String {
    let asked = config.settings.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case("port"));
    asked.map_or_else(|| PORT.to_owned(), |(_, port)| port.trim().to_owned())
}
