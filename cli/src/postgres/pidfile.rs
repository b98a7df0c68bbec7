use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::dirs;
use super::error::DevError;

/// Maximum time for the server of a killed howdah to end.
const ORPHAN_DEADLINE: Duration = Duration::from_mins(1);

/// The contents of `postmaster.pid`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PidFile {
    pub(super) pid: Pid,
    /// Directory of the Unix socket; `None` while the server starts.
    pub(super) socket_dir: Option<PathBuf>,
}

impl PidFile {
    /// Reads the file; `None` if it does not exist or contains no pid.
    pub(super) fn read(data_dir: &Path) -> Option<Self> {
        let text = fs::read_to_string(data_dir.join("postmaster.pid")).ok()?;
        let mut lines = text.lines().map(str::trim);
        let pid = dirs::parse_pid(lines.next()?)?;
        let socket_dir = lines.nth(3).filter(|line| !line.is_empty()).map(PathBuf::from);
        Some(Self { pid, socket_dir })
    }

    /// Whether the socket directory belongs to a private cluster.
    fn is_ours(&self) -> bool {
        let name = self.socket_dir.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(dirs::SOCKET))
    }
}

/// Makes `data_dir`, whose lock is held, available for a new postmaster. The error names the process that uses it.
///
/// Postgres itself removes a stale `postmaster.pid`, except if another process now has the same pid, which is likely after a
/// reboot or in a container.
pub(super) fn make_way(data_dir: &Path) -> Result<(), DevError> {
    let Some(found) = PidFile::read(data_dir) else {
        return Ok(());
    };
    if !dirs::is_alive(found.pid) {
        return Ok(()); // Postgres itself checks for surviving children
    }
    if !is_postmaster(found.pid, data_dir) {
        let path = data_dir.join("postmaster.pid");
        tracing::debug!(path = %path.display(), "removing a stale postmaster.pid");
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DevError::io("remove", &path)(error)),
            _ => Ok(()),
        };
    }
    // This process holds the lock, so the howdah that started the postmaster has ended. On Linux the postmaster is stopping.
    if found.is_ours() && ends(found.pid, data_dir) {
        return Ok(());
    }
    Err(in_use(data_dir))
}

/// The error that names the process using `data_dir`.
pub(super) fn in_use(data_dir: &Path) -> DevError {
    let found = PidFile::read(data_dir).filter(|found| is_postmaster(found.pid, data_dir));
    let holder = found.map_or_else(
        || "another howdah that is starting".to_owned(),
        |found| format!("pid {}", found.pid.as_raw_nonzero()),
    );
    DevError::AlreadyInUse { path: data_dir.to_owned(), holder }
}

/// Requests a fast shutdown of a server that a killed howdah left running, and waits for its end. Returns false after a
/// timeout.
fn ends(pid: Pid, data_dir: &Path) -> bool {
    tracing::info!(pid = pid.as_raw_nonzero(), "waiting for the PostgreSQL of a killed howdah to stop");
    let _ = rustix::process::kill_process(pid, Signal::INT);
    let deadline = Instant::now() + ORPHAN_DEADLINE;
    while is_postmaster(pid, data_dir) {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Whether this pid is a postmaster of this directory. A postmaster's working directory is its data directory.
#[cfg(target_os = "linux")]
fn is_postmaster(pid: Pid, data_dir: &Path) -> bool {
    // An unreadable process belongs to another user, who cannot run Postgres on this directory.
    let about = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let is_there = || Some(fs::read_link(about.join("cwd")).ok()? == fs::canonicalize(data_dir).ok()?);
    let name = fs::read_to_string(about.join("comm"));
    name.is_ok_and(|name| name.trim_end() == "postgres") && is_there() == Some(true)
}

/// Whether this pid is a postmaster, by its name.
#[cfg(not(target_os = "linux"))]
fn is_postmaster(pid: Pid, _data_dir: &Path) -> bool {
    let pid = pid.as_raw_nonzero().to_string();
    let output = std::process::Command::new("ps").args(["-o", "comm=", "-p", &pid]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with("postgres"))
}
