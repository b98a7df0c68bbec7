use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::binaries::OLDEST;
use super::fetch::FetchError;

/// How to install Postgres.
pub(super) const INSTALL: &str = "`sudo apt install postgresql`, `sudo dnf install postgresql-server` or \
    `brew install postgresql@18`, or name its bin directory with --pg-bin or HOWDAH_PG_BIN";

/// Why there is no private Postgres. Every message is one line, and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// No Postgres on this machine.
    #[error("PostgreSQL {OLDEST} or later is not installed: {INSTALL}")]
    NotInstalled,
    /// Only a too old Postgres is installed.
    #[error(
        "PostgreSQL {major} in {} is too old, {OLDEST} or later is needed: {INSTALL}",
        bin_dir.display()
    )]
    TooOld {
        /// Its bin directory.
        bin_dir: PathBuf,
        /// Its major version.
        major: u32,
    },
    /// None is installed, and none was downloaded.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The bin directory that was named cannot be used.
    #[error("{} (from {from}) is not a PostgreSQL bin directory: {why}", bin_dir.display())]
    BadBinaries {
        /// The directory.
        bin_dir: PathBuf,
        /// Where it was named.
        from: &'static str,
        /// The problem.
        why: String,
    },
    /// We are root, Postgres refuses to run as root, and there is no other user.
    #[error(
        "PostgreSQL cannot run as root, and there is no user `postgres` or `howdah` for it: make one with `useradd \
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
        /// The path that it must reach.
        path: PathBuf,
        /// The part of the path that is closed.
        blocked: PathBuf,
    },
    /// The data directory belongs to a user that we cannot run Postgres as.
    #[error(
        "{} belongs to user id {owner}: `chown -R` it to the user that PostgreSQL is to run as",
        path.display()
    )]
    WrongOwner {
        /// The data directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The data directory has other files.
    #[error(
        "{} has other files and no PostgreSQL cluster: choose a new or an empty directory",
        path.display()
    )]
    NotACluster {
        /// The directory.
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
        /// The version that created it.
        made_by: String,
        /// The binaries found.
        bin_dir: PathBuf,
        /// Their version.
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
        /// `pid N`, or a description if the pid is not known yet.
        holder: String,
    },
    /// initdb failed.
    #[error("initdb could not create {} ({status}): {output}", path.display())]
    InitFailed {
        /// The data directory.
        path: PathBuf,
        /// The exit status of initdb.
        status: ExitStatus,
        /// The end of its output.
        output: String,
    },
    /// Postgres ended before it was ready.
    #[error("PostgreSQL stopped before it was ready ({status}), see {}: {tail}", log.display())]
    Exited {
        /// Its exit status.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// Postgres was not ready in time.
    #[error("PostgreSQL was not ready within {seconds} seconds, see {}: {tail}", log.display())]
    TimedOut {
        /// The time limit.
        seconds: u64,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// The program that should run as guard started a cluster instead.
    #[error(
        "this program does not know the command internal-postgres: set \
         ClusterConfig::howdah_binary to one that does"
    )]
    NotAGuard,
    /// A Unix socket's path has about 100 bytes.
    #[error(
        "{} is too long for a Unix socket: set XDG_RUNTIME_DIR to a shorter directory, or unset it",
        path.display()
    )]
    SocketPathTooLong {
        /// The socket.
        path: PathBuf,
    },
    /// The operating system refused an operation.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The private Postgres refused a request.
    #[error("PostgreSQL could not {doing}: {why}")]
    Sql {
        /// The request.
        doing: String,
        /// The error.
        why: String,
    },
}

impl DevError {
    /// For `map_err`: the operation, and its path.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
