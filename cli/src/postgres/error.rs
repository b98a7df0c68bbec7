use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::binaries::OLDEST;
use super::fetch::FetchError;

/// How to get a Postgres.
pub(super) const INSTALL: &str = "`sudo apt install postgresql`, `sudo dnf install postgresql-server` or \
    `brew install postgresql@18`, or name its bin directory with --pg-bin or HOWDAH_PG_BIN";

/// Why there is no private Postgres. Every message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// No Postgres on this machine.
    #[error("PostgreSQL {OLDEST} or later is not installed: {INSTALL}")]
    NotInstalled,
    /// Only a Postgres that is too old.
    #[error(
        "PostgreSQL {major} in {} is too old, {OLDEST} or later is needed: {INSTALL}",
        bin_dir.display()
    )]
    TooOld {
        /// Where it is.
        bin_dir: PathBuf,
        /// Its major version.
        major: u32,
    },
    /// None is installed, and none was fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The bin directory that was asked for cannot be used.
    #[error("{} (from {from}) is not a PostgreSQL bin directory: {why}", bin_dir.display())]
    BadBinaries {
        /// The directory.
        bin_dir: PathBuf,
        /// Who asked for it.
        from: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// We are root, Postgres refuses to run as root, and there is nobody else.
    #[error(
        "PostgreSQL cannot run as root, and there is no user `postgres` or `nobody`: run howdah as \
         another user"
    )]
    NoUser,
    /// The unprivileged user cannot get to a file or directory.
    #[error(
        "PostgreSQL runs as user {user}, who cannot enter {}: use another place \
         than {}, `chmod o+x {}`, or run howdah as another user than root",
        blocked.display(), path.display(), blocked.display()
    )]
    Unreachable {
        /// The user that Postgres runs as.
        user: String,
        /// What it has to reach.
        path: PathBuf,
        /// The place on the way that is closed.
        blocked: PathBuf,
    },
    /// The data directory belongs to somebody that we cannot run Postgres as.
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
    /// The data directory holds something else.
    #[error(
        "{} holds other files and no PostgreSQL cluster: choose a new or an empty directory",
        path.display()
    )]
    NotACluster {
        /// The directory.
        path: PathBuf,
    },
    /// The data directory was made by another major version.
    #[error(
        "{} was made by PostgreSQL {made_by}, but {} is {major}: name the bin directory of \
         PostgreSQL {made_by} in HOWDAH_PG_BIN, or choose a new directory",
        path.display(), bin_dir.display()
    )]
    OtherVersion {
        /// The data directory.
        path: PathBuf,
        /// The version that made it.
        made_by: String,
        /// The binaries found.
        bin_dir: PathBuf,
        /// Their version.
        major: u32,
    },
    /// Another server runs on this data directory.
    #[error(
        "{} is already in use by {holder}: stop that one first, or choose another directory",
        path.display()
    )]
    AlreadyInUse {
        /// The data directory.
        path: PathBuf,
        /// `pid N`, or a description when the pid is not known yet.
        holder: String,
    },
    /// initdb failed.
    #[error("initdb could not make {} ({status}): {output}", path.display())]
    InitFailed {
        /// The data directory.
        path: PathBuf,
        /// How initdb ended.
        status: ExitStatus,
        /// The end of what it said.
        output: String,
    },
    /// Postgres ended before it was ready.
    #[error("PostgreSQL stopped before it was ready ({status}), see {}: {tail}", log.display())]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// Postgres was not ready in time.
    #[error("PostgreSQL was not ready within {seconds} seconds, see {}: {tail}", log.display())]
    TimedOut {
        /// How long we waited.
        seconds: u64,
        /// Its log.
        log: PathBuf,
        /// The end of its log.
        tail: String,
    },
    /// The program meant to run as guard started a cluster instead.
    #[error(
        "this program does not know the command internal-postgres: set \
         ClusterConfig::howdah_binary to one that does"
    )]
    NotAGuard,
    /// A Unix socket's path has room for about 100 bytes.
    #[error(
        "{} is too long for a Unix socket: set XDG_RUNTIME_DIR to a shorter directory, or unset it",
        path.display()
    )]
    SocketPathTooLong {
        /// The socket.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What we were about to do.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
    /// The private Postgres refused.
    #[error("PostgreSQL could not {doing}: {why}")]
    Sql {
        /// What we asked for.
        doing: String,
        /// Its answer.
        why: String,
    },
}

impl DevError {
    /// For `map_err`: what was being done, and with which path.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
