use std::env;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::Pid;
use tempfile::TempDir;

use super::error::DevError;
use super::user::{self, User};

/// The prefix of data directories of temporary clusters.
pub(super) const DATA: &str = "howdah-data-";
/// The prefix of socket directories.
pub(super) const SOCKET: &str = "howdah-sock-";

/// An exclusive lock on a directory. It is held while this value lives, and at most as long as this process.
///
/// The kernel keeps it, so it also ends with `kill -9`, and other containers that share the directory see it.
#[derive(Debug)]
pub(super) struct DirLock(File);

impl DirLock {
    /// `None` if another process has it.
    pub(super) fn take(dir: &Path) -> io::Result<Option<Self>> {
        let file = File::open(dir)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that is being forked just now has a copy of the descriptor until it execs.
        let _ = self.0.unlock();
    }
}

/// A directory of this process. It is removed when dropped, or by the next [`sweep`] if we are killed.
#[derive(Debug)]
pub(super) struct OwnDir {
    _lock: Option<DirLock>, // before the directory: fields are dropped in order
    dir: TempDir,
}

impl OwnDir {
    /// Creates `<base>/<prefix><our pid>-<random>`, mode 0700, owned by the user.
    pub(super) fn create(base: &Path, prefix: &str, user: Option<&User>) -> Result<Self, DevError> {
        let prefix = format!("{prefix}{}-", std::process::id());
        let dir = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o700)) // everybody who can enter is a superuser
            .tempdir_in(base)
            .map_err(DevError::io("create a directory in", base))?;
        let lock = DirLock::take(dir.path()).map_err(DevError::io("lock", dir.path()))?;
        user::give(dir.path(), user).map_err(DevError::io("change the owner of", dir.path()))?;
        Ok(Self { _lock: lock, dir })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Renames the directory. From then on it is not removed any more.
    pub(super) fn rename(self, to: &Path) -> io::Result<()> {
        fs::rename(self.dir.path(), to)?;
        let _ = self.dir.keep();
        Ok(())
    }
}

/// The directory for permanent data: `howdah` in `XDG_DATA_HOME`, or else in `~/.local/share`. For root it is
/// `/var/lib/howdah`, because Postgres runs as another user then, who cannot enter root's home. `None`: there is no
/// home.
pub fn data_home() -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = from("XDG_DATA_HOME")
        .or_else(|| user::is_root().then(|| "/var/lib".into()))
        .or_else(|| from("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("howdah"))
}

/// Creates a directory and its parents. For root, the user that Postgres runs as can enter them, whatever the umask is.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() {
        return Ok(()); // above a relative path
    }
    if let Some(parent) = dir.parent().filter(|_| !dir.exists()) {
        make_dir(parent)?;
    }
    match fs::create_dir(dir) {
        Ok(()) if user::is_root() => fs::set_permissions(dir, Permissions::from_mode(0o755)),
        Err(_) if dir.is_dir() => Ok(()),
        made => made,
    }
}

/// A short directory for the socket. The runtime directory is closed to other users, so it is not used if Postgres runs
/// as another user.
pub(super) fn socket_base(user: Option<&User>) -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|dir| user.is_none() && dir.is_dir()).unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Removes directories of killed processes in `base`. It ignores errors.
pub(super) fn sweep(base: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(pid_of);
        if owner.is_some_and(|pid| !is_alive(pid)) && is_abandoned(&entry.path()) {
            let removed = fs::remove_dir_all(entry.path());
            tracing::debug!(path = %entry.path().display(), ?removed, "removed the directory of a dead process");
        }
    }
}

/// The pid of `123-Xy12ab`.
fn pid_of(rest: &str) -> Option<Pid> {
    rest.split_once('-').and_then(|(pid, _)| parse_pid(pid))
}

pub(super) fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
}

/// Whether it is a directory (no link) that we may remove and that no process has locked. The pid alone is not enough:
/// it could belong to another container.
fn is_abandoned(path: &Path) -> bool {
    let ours = |meta: &fs::Metadata| user::is_root() || meta.uid() == rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && ours(&meta))
        && DirLock::take(path).is_ok_and(|lock| lock.is_some())
}

/// Whether such a process exists, of any user.
pub(super) fn is_alive(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}
