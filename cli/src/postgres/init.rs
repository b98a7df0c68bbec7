use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use super::binaries::Binaries;
use super::cluster::SUPERUSER;
use super::dirs::{self, OwnDir};
use super::error::DevError;
use super::serverlog;
use super::user::{self, User};

/// The version that made the cluster in `data_dir`; `None` when there is none yet.
pub(super) fn made_by(data_dir: &Path) -> Result<Option<String>, DevError> {
    match fs::read_to_string(data_dir.join("PG_VERSION")) {
        Ok(version) => Ok(Some(version.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DevError::io("read", &data_dir.join("PG_VERSION"))(error)),
    }
}

/// Postgres opens only what its own major version made.
pub(super) fn check_version(data_dir: &Path, made_by: String, binaries: &Binaries) -> Result<(), DevError> {
    if made_by == binaries.major().to_string() {
        return Ok(());
    }
    let (bin_dir, major) = (binaries.bin_dir().to_owned(), binaries.major());
    Err(DevError::OtherVersion { path: data_dir.to_owned(), made_by, bin_dir, major })
}

/// Makes a cluster in `data_dir`, which is absent or empty.
///
/// initdb works under another name beside it, and the rename is the moment at which the cluster
/// exists: an initdb that was killed leaves no half a cluster behind under a name that is then
/// trusted for good.
pub(super) fn create(data_dir: &Path, binaries: &Binaries, user: Option<&User>, durable: bool) -> Result<(), DevError> {
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
        // Another howdah was quicker. Whose it is now is settled when it is locked.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && made_by(data_dir)?.is_some() => Ok(()),
        Err(error) => {
            Err(DevError::io("move the new cluster to (for a mount point, name a directory in it)", data_dir)(error))
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
    // Trust, for the socket's directory is open to nobody else; over TCP, should someone turn it
    // on, nothing. The C locale exists everywhere, and orders text the same way everywhere.
    command
        .args(["--username", SUPERUSER, "--auth-local=trust", "--auth-host=reject"])
        .args(["--encoding=UTF8", "--locale=C", "--pgdata"])
        .arg(partial)
        .args((!durable).then_some("--no-sync"))
        .env("LC_ALL", "C")
        .current_dir("/") // ours may be closed to the other user
        .stdin(Stdio::null());
    user::run_as(&mut command, user);
    let output = command.output().map_err(DevError::io("run", &program))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(DevError::InitFailed { path: data_dir.to_owned(), status: output.status, output: serverlog::last_lines(&said) })
}
