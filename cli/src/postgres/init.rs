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

/// Version that created the cluster in `data_dir`; `None` without a cluster.
pub(super) fn made_by(data_dir: &Path) -> Result<Option<String>, DevError> {
    match fs::read_to_string(data_dir.join("PG_VERSION")) {
        Ok(version) => Ok(Some(version.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DevError::io("read", &data_dir.join("PG_VERSION"))(error)),
    }
}

/// Fails if another major version of Postgres created the data, because Postgres would refuse to start.
pub(super) fn check_version(data_dir: &Path, made_by: String, binaries: &Binaries) -> Result<(), DevError> {
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
