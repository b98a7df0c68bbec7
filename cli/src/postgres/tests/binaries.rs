use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::super::binaries::{Places, major_of};
use super::super::{Binaries, Cluster, DevError, OLDEST};
use super::{open_dir, script, throw_away};

/// A simulated machine that contains only what a test puts on it.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Self(open_dir())
    }

    /// Installs a fake Postgres and returns its bin directory.
    fn install(&self, bin_dir: &str, version: &str) -> PathBuf {
        let bin_dir = self.0.path().join(bin_dir);
        fs::create_dir_all(&bin_dir).unwrap();
        script(&bin_dir.join("postgres"), &format!("echo 'postgres (PostgreSQL) {version}'"));
        script(&bin_dir.join("initdb"), "");
        fs::canonicalize(bin_dir).unwrap()
    }

    fn places(&self) -> Places {
        Places { versioned: vec![self.0.path().join("lib"), self.0.path().join("opt")], ..Places::default() }
    }

    fn named(&self, bin_dir: &Path) -> Places {
        Places { named: Some((bin_dir.to_owned(), "HOWDAH_PG_BIN")), ..self.places() }
    }
}

fn found(places: &Places) -> (PathBuf, u32) {
    let binaries = places.search(None).unwrap();
    (binaries.bin_dir().to_owned(), binaries.major())
}

#[tokio::test]
async fn this_machine_has_or_downloads_a_postgres_that_is_new_enough() {
    let cluster = Cluster::start(throw_away()).await.unwrap();
    assert!(cluster.binaries().major() >= OLDEST);
    assert!(cluster.binaries().program("initdb").is_file());
    assert!(Binaries::find(None).is_ok(), "it is installed or downloaded now");
}

#[test]
fn the_major_version_is_read_from_the_version_texts_of_packages() {
    assert_eq!(major_of("postgres (PostgreSQL) 15.12 (Debian 15.12-0+deb12u2)"), Some(15));
    assert_eq!(major_of("postgres (PostgreSQL) 18.6"), Some(18));
    assert_eq!(major_of("postgres (PostgreSQL) 19beta1"), Some(19));
    assert_eq!(major_of("pgbouncer 1.25"), None);
}

#[test]
fn a_directory_named_by_hand_is_never_passed_over() {
    let machine = Machine::new();
    machine.install("lib/18/bin", "18.1");
    let places = machine.named(Path::new("/no/such/bin"));
    let error = places.search(None).unwrap_err();
    assert!(matches!(error, DevError::BadBinaries { .. }));
    assert!(error.to_string().starts_with("/no/such/bin (from HOWDAH_PG_BIN) is not"), "{error}");
}

#[test]
fn a_directory_named_by_hand_must_be_new_enough() {
    let machine = Machine::new();
    let old = machine.install("lib/14/bin", "14.9");
    let error = machine.named(&old).search(None).unwrap_err();
    assert!(error.to_string().ends_with("it is PostgreSQL 14, but 15 or later is required"), "{error}");
}

#[test]
fn a_pg_config_of_client_programs_alone_is_passed_over() {
    let machine = Machine::new();
    let clients = machine.0.path().join("clients");
    fs::create_dir(&clients).unwrap();
    script(&clients.join("psql"), "");
    script(&clients.join("pg_config"), &format!("echo '{}'", clients.display()));
    let server = machine.install("lib/16/bin", "16.2");
    let places = Places { pg_config: Some(clients.join("pg_config").into()), ..machine.places() };
    assert_eq!(found(&places), (server, 16));
}

#[test]
fn the_highest_version_is_taken_and_ten_is_more_than_nine() {
    let machine = Machine::new();
    machine.install("lib/9/bin", "9.6");
    machine.install("lib/15/bin", "15.1");
    let newest = machine.install("lib/18/bin", "18.1");
    assert_eq!(found(&machine.places()), (newest, 18));
}

#[test]
fn homebrew_directories_are_known() {
    let machine = Machine::new();
    let brewed = machine.install("opt/postgresql@17/bin", "17.0");
    assert_eq!(found(&machine.places()), (brewed, 17));
}

#[test]
fn links_in_the_path_lead_to_the_real_directory() {
    let machine = Machine::new();
    let real = machine.install("somewhere/bin", "16.4");
    let linked = machine.0.path().join("usr-local-bin");
    fs::create_dir(&linked).unwrap();
    for name in ["postgres", "initdb"] {
        symlink(real.join(name), linked.join(name)).unwrap();
    }
    let path: OsString = linked.into();
    assert_eq!(found(&Places { path: Some(path), ..machine.places() }), (real, 16));
}

#[test]
fn the_version_that_made_the_data_is_preferred() {
    let machine = Machine::new();
    let (older, newer) = (machine.install("lib/15/bin", "15.1"), machine.install("lib/18/bin", "18.1"));
    let choose = |made_by| machine.places().search(made_by).unwrap().bin_dir().to_owned();
    assert_eq!(choose(Some(15)), older);
    assert_eq!(choose(Some(17)), newer);
}

#[test]
fn without_postgres_one_line_says_how_to_install_it() {
    let message = Machine::new().places().search(None).unwrap_err().to_string();
    for part in ["apt install", "dnf install", "brew install", "HOWDAH_PG_BIN"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains('\n'));
}

#[test]
fn an_old_postgres_alone_is_another_error_than_no_postgres() {
    let machine = Machine::new();
    machine.install("lib/13/bin", "13.3");
    let error = machine.places().search(None).unwrap_err();
    assert!(matches!(error, DevError::TooOld { major: 13, .. }), "{error}");
}
