use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use super::{
    binaries::Binaries,
    dirs::{self, DirLock, OwnDir},
    error::DevError,
    guard, pidfile,
    postmaster::{Postmaster, StopMode},
    serverlog,
    settings::{self, ClusterConfig, SUPERUSER},
    user::{self, User},
};
use crate::secrets;

/// Maximum length of a Unix socket path: 104 bytes on macOS, 108 on Linux, including the final zero.
const SOCKET_PATH_MAX: usize = 103;

/// Everything needed to start the server, and to restart it.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) data_dir: PathBuf,
    pub(super) port: String,
    /// Stop mode when the parent dies or the cluster is dropped.
    pub(super) at_end: StopMode,
    pub(super) binaries: Binaries,
    user: Option<User>,
    guard: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
    // Fields drop in this order, so that the data directory stays locked until `_scratch`, which may contain it, is removed.
    sockets: OwnDir,
    _scratch: Option<OwnDir>,
    _lock: DirLock,
}

impl Launch {
    /// Creates and locks everything that the server needs. Blocks for a second or two while initdb runs.
    pub(super) fn prepare(config: &ClusterConfig, binaries: Binaries) -> Result<Self, DevError> {
        let guard = guard::program(config.howdah_binary.as_deref())?;
        let location = match &config.data_dir {
            None => DataLocation::throw_away(&config.temporary_dir, &binaries)?,
            Some(data_dir) => DataLocation::persistent(data_dir, config, &binaries)?,
        };
        let DataLocation { scratch, data_dir, user } = location;
        if config.howdah_binary.is_some() {
            user::check_reach(&guard, user.as_ref())?;
        }
        user::check_reach(&binaries.program("postgres"), user.as_ref())?;
        let lock = DirLock::take(&data_dir).map_err(DevError::io("lock", &data_dir))?;
        let lock = lock.ok_or_else(|| pidfile::in_use(&data_dir))?;
        let sockets = socket_dir(user.as_ref())?;
        Ok(Self {
            arguments: settings::arguments(config, &data_dir, sockets.path()),
            log: data_dir.join("postgres.log"),
            port: settings::port(config),
            at_end: if scratch.is_some() { StopMode::Immediate } else { StopMode::Fast },
            data_dir,
            binaries,
            user,
            guard,
            sockets,
            _scratch: scratch,
            _lock: lock,
        })
    }

    /// Starts the server. Also returns the offset in the log at which this run's output starts.
    pub(super) fn spawn(&self) -> Result<(Postmaster, u64), DevError> {
        pidfile::make_way(&self.data_dir)?;
        self.clear_sockets();
        let (log, from) = serverlog::open(&self.log).map_err(DevError::io("open", &self.log))?;
        user::give(&self.log, self.user.as_ref()).map_err(DevError::io("change the owner of", &self.log))?;
        let errors = log.try_clone().map_err(DevError::io("open", &self.log))?;
        let postgres = self.binaries.program("postgres");
        let mut command = guard::command(&self.guard, self.at_end, &postgres, &self.arguments);
        command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .current_dir("/") // the current directory may be closed to the other user
            .process_group(0) // Ctrl-C must only reach this process, which stops Postgres last
            .env("LC_ALL", "C"); // one language in the log; macOS refuses to start without it
        clear_environment(&mut command);
        user::run_as(&mut command, self.user.as_ref());
        let postmaster = Postmaster::spawn(command, self.at_end).map_err(DevError::io("run", &self.guard))?;
        let data_dir = self.data_dir.display();
        tracing::debug!(pid = postmaster.pid(), %data_dir, "started PostgreSQL");
        Ok((postmaster, from))
    }

    pub(super) fn socket_dir(&self) -> &Path {
        self.sockets.path()
    }

    pub(super) fn exited(&self, status: ExitStatus, from: u64) -> DevError {
        DevError::Exited { status, log: self.log.clone(), tail: serverlog::tail(&self.log, from) }
    }

    pub(super) fn timed_out(&self, seconds: u64, from: u64) -> DevError {
        DevError::TimedOut { seconds, log: self.log.clone(), tail: serverlog::tail(&self.log, from) }
    }

    /// Removes lock files of Unix sockets, because a pid in them may now belong to another process. Safe because the directory
    /// is private.
    fn clear_sockets(&self) {
        for entry in fs::read_dir(self.socket_dir()).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A data directory with a cluster, and the user that Postgres runs as.
struct DataLocation {
    scratch: Option<OwnDir>,
    data_dir: PathBuf,
    user: Option<User>,
}

impl DataLocation {
    fn throw_away(base: &Path, binaries: &Binaries) -> Result<Self, DevError> {
        let user = User::for_new_files()?;
        user::check_reach(base, user.as_ref())?;
        // Removes the directories of killed processes in the background, because they may contain thousands of files.
        let killed = base.to_owned();
        std::thread::spawn(move || dirs::sweep(&killed, dirs::DATA));
        let scratch = OwnDir::create(base, dirs::DATA, user.as_ref())?;
        let data_dir = scratch.path().join("data");
        create(&data_dir, binaries, user.as_ref(), false)?;
        Ok(Self { scratch: Some(scratch), data_dir, user })
    }

    fn persistent(data_dir: &Path, config: &ClusterConfig, binaries: &Binaries) -> Result<Self, DevError> {
        let found = fs::canonicalize(data_dir).or_else(|_| std::path::absolute(data_dir));
        let data_dir = found.map_err(DevError::io("find", data_dir))?;
        if let Some(made_by) = made_by(&data_dir)? {
            check_version(&data_dir, made_by, binaries)?;
        } else {
            let (path, major) = (data_dir.display(), binaries.major());
            tracing::info!(data_dir = %path, major, "creating a PostgreSQL cluster");
            create(&data_dir, binaries, User::for_new_files()?.as_ref(), config.fsync)?;
        }
        let user = User::owner_of(&data_dir)?;
        user::check_reach(&data_dir, user.as_ref())?;
        Ok(Self { scratch: None, data_dir, user })
    }
}

fn socket_dir(user: Option<&User>) -> Result<OwnDir, DevError> {
    let base = dirs::socket_base(user);
    dirs::sweep(&base, dirs::SOCKET);
    let sockets = OwnDir::create(&base, dirs::SOCKET, user)?;
    let path = sockets.path().join(".s.PGSQL.65535");
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(DevError::SocketPathTooLong { path });
    }
    Ok(sockets)
}

/// Removes environment variables for Postgres clients that would affect the server. Also removes credentials, because SQL can
/// start programs that read the environment of the server.
fn clear_environment(command: &mut Command) {
    let of_clients = ["PGDATA", "PGPORT", "PGDATESTYLE", "PGCLIENTENCODING", "PGTZ"];
    for name in of_clients.into_iter().chain(secrets::names()) {
        command.env_remove(name);
    }
}

/// Version that created the cluster in `data_dir`; `None` without a cluster.
pub(super) fn made_by(data_dir: &Path) -> Result<Option<String>, DevError> {
    match fs::read_to_string(data_dir.join("PG_VERSION")) {
        Ok(version) => Ok(Some(version.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DevError::io("read", &data_dir.join("PG_VERSION"))(error)),
    }
}

/// Fails if another major version of Postgres created the data, because Postgres would refuse to start.
fn check_version(data_dir: &Path, made_by: String, binaries: &Binaries) -> Result<(), DevError> {
    if made_by == binaries.major().to_string() {
        return Ok(());
    }
    let (bin_dir, major) = (binaries.bin_dir().to_owned(), binaries.major());
    Err(DevError::OtherVersion { path: data_dir.to_owned(), made_by, bin_dir, major })
}

/// Creates a cluster in `data_dir`, which must be empty or not exist.
///
/// initdb works in a temporary directory, which is then renamed. So a killed initdb never leaves an incomplete cluster under the
/// final name.
fn create(data_dir: &Path, binaries: &Binaries, user: Option<&User>, durable: bool) -> Result<(), DevError> {
    let (Some(parent), Some(name)) = (data_dir.parent(), data_dir.file_name()) else {
        return Err(DevError::NotACluster { path: data_dir.to_owned() });
    };
    if fs::read_dir(data_dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(DevError::NotACluster { path: data_dir.to_owned() });
    }
    fs::create_dir_all(parent).map_err(DevError::io("make", parent))?;
    user::check_reach(parent, user)?;
    let prefix = format!(".{}.initdb-", name.to_string_lossy());
    dirs::sweep(parent, &prefix);
    let partial = OwnDir::create(parent, &prefix, user)?;
    initdb(partial.path(), data_dir, binaries, user, durable)?;
    publish(partial, data_dir)?;
    if durable {
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(DevError::io("sync", parent))?;
    }
    Ok(())
}

fn publish(partial: OwnDir, data_dir: &Path) -> Result<(), DevError> {
    match partial.rename(data_dir) {
        // Another howdah process has created the cluster first. The lock on the data directory decides which process uses it.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && made_by(data_dir)?.is_some() => Ok(()),
        Err(error) => {
            Err(DevError::io("move the new cluster (for a mount point, use a directory in it) to", data_dir)(error))
        }
        Ok(()) => Ok(()),
    }
}

fn initdb(
    partial: &Path,
    data_dir: &Path,
    binaries: &Binaries,
    user: Option<&User>,
    durable: bool,
) -> Result<(), DevError> {
    let program = binaries.program("initdb");
    let mut command = Command::new(&program);
    // Trust authentication is safe, because no other user can enter the socket's directory. TCP connections, if enabled, are
    // rejected. The C locale exists on all systems and sorts text identically.
    command
        .args(["--username", SUPERUSER, "--auth-local=trust", "--auth-host=reject"])
        .args(["--encoding=UTF8", "--locale=C", "--pgdata"])
        .arg(partial)
        .args((!durable).then_some("--no-sync"))
        .env("LC_ALL", "C")
        .current_dir("/") // the current directory may be closed to the other user
        .stdin(Stdio::null());
    user::run_as(&mut command, user);
    let output = command.output().map_err(DevError::io("run", &program))?;
    if output.status.success() {
        return Ok(());
    }
    let output_text = String::from_utf8_lossy(&output.stderr);
    Err(DevError::InitFailed {
        path: data_dir.to_owned(),
        status: output.status,
        output: serverlog::last_lines(&output_text),
    })
}
