use std::env;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::Pid;
use tempfile::TempDir;

use super::error::DevError;
use super::user::{self, User};

/// Prefix of data directories of temporary clusters.
pub(super) const DATA: &str = "howdah-data-";
/// Prefix of socket directories.
pub(super) const SOCKET: &str = "howdah-sock-";

/// An exclusive lock on a directory, held until this value is dropped or the process ends.
///
/// It is a kernel lock, so it also ends with `kill -9`, and is visible to other containers that share the directory.
#[derive(Debug)]
pub(super) struct DirLock(File);

impl DirLock {
    /// Takes the lock; `None` if another process holds it.
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
        // Unlock explicitly: a child that is being forked right now holds a copy of the descriptor until it execs.
        let _ = self.0.unlock();
    }
}

/// A private directory of this process. Removed when dropped, or by the next [`sweep`] if this process is killed.
#[derive(Debug)]
pub(super) struct OwnDir {
    _lock: Option<DirLock>, // before the directory: fields are dropped in order
    dir: TempDir,
}

impl OwnDir {
    /// Creates `<base>/<prefix><pid of this process>-<random>` with mode 0700, owned by `user`.
    pub(super) fn create(base: &Path, prefix: &str, user: Option<&User>) -> Result<Self, DevError> {
        let prefix = format!("{prefix}{}-", std::process::id());
        let dir = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o700)) // a user who can enter it becomes a database superuser
            .tempdir_in(base)
            .map_err(DevError::io("create a directory in", base))?;
        let lock = DirLock::take(dir.path()).map_err(DevError::io("lock", dir.path()))?;
        user::give(dir.path(), user).map_err(DevError::io("change the owner of", dir.path()))?;
        Ok(Self { _lock: lock, dir })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Renames the directory, which is then no longer removed on drop.
    pub(super) fn rename(self, to: &Path) -> io::Result<()> {
        fs::rename(self.dir.path(), to)?;
        let _ = self.dir.keep();
        Ok(())
    }
}

/// Directory for permanent data: `howdah` in `XDG_DATA_HOME`, or else in `~/.local/share`. For root it is `/var/lib/howdah`,
/// because Postgres then runs as another user, who cannot enter root's home. `None` without a home.
pub fn data_home() -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = from("XDG_DATA_HOME")
        .or_else(|| user::is_root().then(|| "/var/lib".into()))
        .or_else(|| from("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("howdah"))
}

/// Creates a directory and its parents. If run by root, the user that Postgres runs as can enter them regardless of the umask.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() {
        return Ok(()); // empty: the parent of a relative path of one component
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

/// Parent of the socket directory, with a short path. The runtime directory is closed to other users, so it is not used if Postgres
/// runs as another user.
pub(super) fn socket_base(user: Option<&User>) -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|dir| user.is_none() && dir.is_dir()).unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Removes directories of killed processes in `base`, ignoring errors.
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

/// Parses the pid from the rest of a directory name, such as 123 from `123-Xy12ab`.
fn pid_of(rest: &str) -> Option<Pid> {
    rest.split_once('-').and_then(|(pid, _)| parse_pid(pid))
}

pub(super) fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
}

/// Whether the path is a directory (not a link) that this user may remove and that no process has locked. The pid alone is not
/// enough, because it could belong to another container.
fn is_abandoned(path: &Path) -> bool {
    let ours = |meta: &fs::Metadata| user::is_root() || meta.uid() == rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && ours(&meta))
        && DirLock::take(path).is_ok_and(|lock| lock.is_some())
}

/// Whether a process with this pid exists, of any user.
pub(super) fn is_alive(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}
