//! A file with one connection string, or with one `NAME=URL` per line. The broker reads it again while it runs.

use std::path::{Path, PathBuf};

use super::{load::read, url};

/// A file that contains a connection string, and the string as it was when the configuration was loaded.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlFile {
    path: PathBuf,
    /// Name of the store whose line `NAME=URL` counts. `None` if the file contains only one connection string.
    store: Option<String>,
    /// Database that replaces the one of the file's connection string.
    database: Option<String>,
    text: String,
}

impl UrlFile {
    pub(super) fn new(path: &str, store: Option<&str>, text: &str) -> Self {
        Self { path: path.into(), store: store.map(str::to_owned), database: None, text: text.trim().to_owned() }
    }

    /// Describes a file that contains only the connection string `text`.
    #[must_use]
    pub fn without_store(path: &Path, text: &str) -> Self {
        Self { path: path.to_owned(), store: None, database: None, text: text.trim().to_owned() }
    }

    /// Returns the file as the source of the connection string of another database on the same server.
    pub(super) fn of_database(&self, database: &str) -> Self {
        let text = url::with_database(&self.text, database);
        Self { database: Some(database.to_owned()), text, ..self.clone() }
    }

    /// Whether this connection string was read from the file when the configuration was loaded.
    pub(super) fn held(&self, text: &str) -> bool {
        self.text == text
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the connection string that the file contains now. Errors contain no part of it.
    pub fn read(&self) -> Result<String, String> {
        let text = read(&self.path)?;
        let found = match &self.store {
            None => Some(text.trim()),
            Some(name) => text.lines().find_map(|line| {
                let (store, url) = line.split_once('=')?;
                (store.trim() == name).then(|| url.trim())
            }),
        };
        let found =
            found.ok_or_else(|| format!("{}: there is no line NAME=URL for this store", self.path.display()))?;
        url::check(found).map_err(|problem| format!("{}: {problem}", self.path.display()))?;
        Ok(self.database.as_ref().map_or_else(|| found.to_owned(), |database| url::with_database(found, database)))
    }
}
