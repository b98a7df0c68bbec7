use std::env;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::Pid;
use tempfile::TempDir;

use super::error::DevError;
use super::user::{self, User};

/// Data directories of throw-away clusters, in the temporary directory.
pub(super) const DATA: &str = "howdah-data-";
/// Socket directories.
pub(super) const SOCKET: &str = "howdah-sock-";

/// The right to a directory, for as long as this lives and at most as long as this process does.
///
/// The kernel keeps it, so it ends with `kill -9` too, and other containers that share the
/// directory see it.
#[derive(Debug)]
pub(super) struct DirLock(File);

impl DirLock {
    /// `None` when somebody else has it.
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
        // Closing is not enough: a child being forked just now holds a copy of the descriptor until
        // it execs.
        let _ = self.0.unlock();
    }
}

/// A directory of this process, removed when dropped, and by the next [`sweep`] should we be
/// killed.
#[derive(Debug)]
pub(super) struct OwnDir {
    _lock: Option<DirLock>, // before the directory: fields are dropped in order
    dir: TempDir,
}

impl OwnDir {
    /// Makes `<base>/<prefix><our pid>-<random>`, mode 0700, belonging to the user.
    pub(super) fn create(base: &Path, prefix: &str, user: Option<&User>) -> Result<Self, DevError> {
        let prefix = format!("{prefix}{}-", std::process::id());
        let dir = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o700)) // whoever can enter is superuser
            .tempdir_in(base)
            .map_err(DevError::io("make a directory in", base))?;
        let lock = DirLock::take(dir.path()).map_err(DevError::io("lock", dir.path()))?;
        user::give(dir.path(), user).map_err(DevError::io("change the owner of", dir.path()))?;
        Ok(Self { _lock: lock, dir })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Gives the directory another name; from then on it is nobody's to remove.
    pub(super) fn rename(self, to: &Path) -> io::Result<()> {
        fs::rename(self.dir.path(), to)?;
        let _ = self.dir.keep();
        Ok(())
    }
}

/// Where Howdah keeps what lasts: `howdah` in `XDG_DATA_HOME`, or else in `~/.local/share`; root's is `/var/lib/howdah`,
/// since its Postgres runs as another user, to whom root's home is closed. `None`: there is no home.
pub fn data_home() -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = from("XDG_DATA_HOME")
        .or_else(|| user::is_root().then(|| "/var/lib".into()))
        .or_else(|| from("HOME").map(|home| home.join(".local/share")));
    base.map(|base| base.join("howdah"))
}

/// Makes a directory and what is above it; root's such that the user that Postgres runs as can enter them, whatever the
/// umask is.
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

/// A place for data that is thrown away: the system's temporary directory.
pub(super) fn data_base() -> PathBuf {
    env::temp_dir()
}

/// A short place for the socket. The runtime directory is closed to other users, so not when
/// Postgres is one.
pub(super) fn socket_base(user: Option<&User>) -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|dir| user.is_none() && dir.is_dir()).unwrap_or_else(|| PathBuf::from("/tmp"))
}

/// Removes what killed processes left behind in `base`. Never an error: it only tidies up.
pub(super) fn sweep(base: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(pid_of);
        if owner.is_some_and(|pid| !is_alive(pid)) && is_abandoned(&entry.path()) {
            let removed = fs::remove_dir_all(entry.path());
            tracing::debug!(path = %entry.path().display(), ?removed, "removed a dead process's");
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

/// A directory (no link) that we may remove and that nobody holds: the pid alone could be one of
/// another container.
fn is_abandoned(path: &Path) -> bool {
    let ours = |meta: &fs::Metadata| user::is_root() || meta.uid() == rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && ours(&meta))
        && DirLock::take(path).is_ok_and(|lock| lock.is_some())
}

/// Is there such a process, whoever it belongs to?
pub(super) fn is_alive(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}
