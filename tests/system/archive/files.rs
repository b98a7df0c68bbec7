//! Finds the files of an archive directory by name alone, as an external reader does.

use std::path::{Path, PathBuf};

use howdah_archive::{Location, Manifest};

pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// `file://` URL of the directory.
    pub fn url(&self) -> String {
        format!("file://{}/archive", self.0.path().display())
    }

    /// Returns a URL below a regular file, where no directory can be created.
    pub fn a_file(&self) -> String {
        let path = self.0.path().join("file");
        std::fs::write(&path, "").expect("written");
        format!("file://{}", path.display())
    }

    /// The parent of the archive's directory `archive`.
    pub fn parent(&self) -> &Path {
        self.0.path()
    }

    pub fn location(&self) -> Location {
        Location::open(&self.url()).expect("a location")
    }

    /// Renames the archive's directory, so that the archive is missing.
    pub fn move_away(&self) {
        std::fs::rename(self.root(), self.0.path().join("away")).expect("moved");
    }

    /// Undoes `move_away`.
    pub fn move_back(&self) {
        std::fs::rename(self.0.path().join("away"), self.root()).expect("moved");
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("archive")
    }

    /// Returns all files whose names end with `end`.
    fn ending(&self, end: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.root(), &mut found);
        found.retain(|path| path.to_string_lossy().ends_with(end));
        found.sort();
        found
    }

    pub fn everything(&self) -> Vec<PathBuf> {
        self.ending("")
    }

    /// All files that match `**/*.parquet`, with their contents.
    pub fn parquet(&self) -> Vec<(PathBuf, Vec<u8>)> {
        self.ending(".parquet").into_iter().map(|path| (path.clone(), std::fs::read(path).expect("read"))).collect()
    }

    /// Returns the job ids in all Parquet files, sorted. Fails if a file is incomplete.
    pub fn ids(&self) -> Vec<i64> {
        let files = self.parquet().into_iter();
        let mut ids: Vec<i64> = files
            .flat_map(|(path, data)| {
                howdah_archive::ids_of(data.into()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            })
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Number of unfinished files that archive runs left behind.
    pub fn staged(&self) -> usize {
        self.ending(".unfinished").len()
    }

    /// Returns the manifest of an archived day. Fails if several stores have archived the day.
    pub fn manifest(&self, day: &str) -> Manifest {
        let found = self.ending(&format!("day={day}/_manifest.json"));
        let [only] = &found[..] else { panic!("not one manifest: {found:?}") };
        serde_json::from_slice(&std::fs::read(only).expect("read")).expect("a manifest")
    }

    /// Returns the manifest of a day that this store has archived.
    pub fn manifest_of(&self, store: i64, day: &str) -> Manifest {
        let name = format!("store={store}/day={day}/_manifest.json");
        let text = std::fs::read(self.root().join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        serde_json::from_slice(&text).expect("a manifest")
    }
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() { walk(&path, found) } else { found.push(path) }
    }
}
