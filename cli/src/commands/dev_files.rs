//! Files that `howdah dev` generates for the broker and its clients, in a directory beside its data directory or in a temporary
//! one.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

/// Directory with the files that `howdah dev` generates. A temporary directory is deleted on drop.
pub(super) struct DevFiles {
    directory: PathBuf,
    /// Deletes the directory on drop.
    _temporary: Option<TempDir>,
}

impl DevFiles {
    /// Creates the directory `DATA_DIR-NAME` if needed, or a temporary directory if there is no data directory. All users can
    /// list the directory; secret files are protected by their own file mode.
    pub(super) fn beside(data_dir: Option<&Path>, name: &str) -> io::Result<Self> {
        let own = if let Some(data_dir) = data_dir {
            let mut directory = data_dir.as_os_str().to_owned();
            directory.push(format!("-{name}"));
            fs::create_dir_all(&directory)?;
            Self { directory: directory.into(), _temporary: None }
        } else {
            let temporary = tempfile::Builder::new().prefix(&format!("howdah-{name}-")).tempdir()?;
            Self { directory: temporary.path().to_owned(), _temporary: Some(temporary) }
        };
        fs::set_permissions(&own.directory, fs::Permissions::from_mode(0o755))?;
        Ok(own)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Removes an existing file and creates a new one, so that the file has this mode before it has content.
    pub(super) fn write(&self, name: &str, text: &str, mode: u32) -> io::Result<()> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())
    }
}
