use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::binaries::OLDEST;
use super::fetch::FetchError;

/// How to install Postgres.
pub(super) const INSTALL: &str = "`sudo apt install postgresql`, `sudo dnf install postgresql-server` or \
    `brew install postgresql@18`, or name its bin directory with --pg-bin or HOWDAH_PG_BIN";

/// Reason why there is no private Postgres. Every message is one line and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// Postgres is not installed.
    #[error("PostgreSQL {OLDEST} or later is not installed: {INSTALL}")]
    NotInstalled,
    /// The installed Postgres is too old.
    #[error(
        "PostgreSQL {major} in {} is too old, {OLDEST} or later is required: {INSTALL}",
        bin_dir.display()
    )]
    TooOld {
        /// Bin directory of the installed Postgres.
        bin_dir: PathBuf,
        /// Major version of the installed Postgres.
        major: u32,
    },
    /// Postgres is not installed and could not be downloaded.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The explicitly named bin directory cannot be used.
    #[error("{} (from {from}) is not a PostgreSQL bin directory: {why}", bin_dir.display())]
    BadBinaries {
        /// The explicitly named bin directory.
        bin_dir: PathBuf,
        /// Flag or environment variable that names the directory.
        from: &'static str,
        /// Reason why the directory cannot be used.
        why: String,
    },
    /// Howdah runs as root, Postgres refuses to run as root, and no other user exists for Postgres.
    #[error(
        "PostgreSQL cannot run as root, and there is no user `postgres` or `howdah` for it: create one with `useradd \
         --system howdah`, or run howdah as another user"
    )]
    NoUser,
    /// The unprivileged user cannot reach a file or directory.
    #[error(
        "PostgreSQL runs as user {user}, who cannot enter {}: use another directory \
         than {}, `chmod o+x {}`, or run howdah as another user than root",
        blocked.display(), path.display(), blocked.display()
    )]
    Unreachable {
        /// The user that Postgres runs as.
        user: String,
        /// Path that Postgres must reach.
        path: PathBuf,
        /// First directory of the path that the user cannot enter.
        blocked: PathBuf,
    },
    /// Postgres cannot run as the owner of the data directory.
    #[error(
        "{} belongs to user id {owner}: `chown -R` it to the user that PostgreSQL should run as",
        path.display()
    )]
    WrongOwner {
        /// The data directory.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
    },
    /// The data directory contains other files, and no cluster.
    #[error(
        "{} contains other files and no PostgreSQL cluster: choose a new or an empty directory",
        path.display()
    )]
    NotACluster {
        /// The data directory.
        path: PathBuf,
    },
    /// The data directory was created by another major version.
    #[error(
        "{} was created by PostgreSQL {made_by}, but {} is {major}: set HOWDAH_PG_BIN to the bin directory of \
         PostgreSQL {made_by}, or choose a new directory",
        path.display(), bin_dir.display()
    )]
    OtherVersion {
        /// The data directory.
        path: PathBuf,
        /// Version that created the data directory.
        made_by: String,
        /// Bin directory of the Postgres found.
        bin_dir: PathBuf,
        /// Major version of the Postgres found.
        major: u32,
    },
    /// Another server runs on this data directory.
    #[error(
        "{} is already in use by {holder}: stop that process first, or choose another directory",
        path.display()
    )]
    AlreadyInUse {
        /// The data directory.
        path: PathBuf,
        /// `pid N`, or a description if the pid is not yet known.
        holder: String,
    },
    /// initdb failed.
    #[error("initdb could not create {} ({status}): {output}", path.display())]
    InitFailed {
        /// The data directory.
        path: PathBuf,
        /// Exit status of initdb.
        status: ExitStatus,
        /// Last lines of the output of initdb.
        output: String,
    },
    /// Postgres ended before it was ready.
    #[error("PostgreSQL stopped before it was ready ({status}), see {}: {tail}", log.display())]
    Exited {
        /// Exit status of Postgres.
        status: ExitStatus,
        /// Path of the Postgres server log.
        log: PathBuf,
        /// Last lines of the Postgres server log.
        tail: String,
    },
    /// Postgres was not ready in time.
    #[error("PostgreSQL was not ready within {seconds} seconds, see {}: {tail}", log.display())]
    TimedOut {
        /// Time limit of the start, in seconds.
        seconds: u64,
        /// Path of the Postgres server log.
        log: PathBuf,
        /// Last lines of the Postgres server log.
        tail: String,
    },
    /// The program `ClusterConfig::howdah_binary` does not know the hidden command, and started a cluster instead of Postgres.
    #[error(
        "this program does not know the command internal-postgres: set \
         ClusterConfig::howdah_binary to one that does"
    )]
    NotAGuard,
    /// The path of the Unix socket is longer than the limit of about 100 bytes.
    #[error(
        "{} is too long for a Unix socket: set XDG_RUNTIME_DIR to a shorter directory, or unset it",
        path.display()
    )]
    SocketPathTooLong {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The operating system returned an error.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The failed operation, such as `read`.
        doing: &'static str,
        /// File or directory of the failed operation.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The private Postgres returned an error.
    #[error("PostgreSQL could not {doing}: {why}")]
    Sql {
        /// The failed operation, such as `create database "app"`.
        doing: String,
        /// Error message of Postgres.
        why: String,
    },
}

impl DevError {
    /// For `map_err`: adds the operation and its path.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
