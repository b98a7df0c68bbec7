//! Installs what Patroni needs: Python with packages, etcd, and a user other than root.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// Python packages to install. `psycopg2-binary` needs no compiler; PyPI has `ydiff` and `python-etcd` only as source
/// packages, in pure Python.
const PACKAGES: [&str; 2] = ["patroni[etcd3]==4.1.5", "psycopg2-binary==2.9.13"];

/// Returns a Python with Patroni, in a virtual environment below `target/` that is created once.
pub(super) fn python() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("patroni");
    let (program, installed) = (directory.join("bin/python"), directory.join("installed"));
    let wanted = PACKAGES.join(" ");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return program;
    }
    let _ = fs::remove_dir_all(&directory);
    // Prefers the system's Python: Patroni runs as another user, who may not be able to read a Python in a home
    // directory.
    let system = Path::new("/usr/bin/python3");
    let maker = if system.exists() { system } else { Path::new("python3") };
    run(Command::new(maker).args(["-m", "venv"]).arg(&directory));
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary"];
    run(Command::new(&program).args(pip).args(PACKAGES));
    fs::write(installed, wanted).expect("installed");
    program
}

/// Returns the path of etcd, in which Patroni stores the current primary. As root on Debian, installs etcd.
pub(super) fn etcd() -> PathBuf {
    let found = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|program| program.is_file())
    };
    let install = || {
        let root = rustix::process::geteuid().is_root() && Path::new("/usr/bin/apt-get").exists();
        assert!(root, "etcd is missing: apt-get install etcd-server, or put the program on the PATH");
        let apt = ["install", "--yes", "--quiet", "--no-install-recommends", "etcd-server"];
        run(Command::new("apt-get").args(apt).env("DEBIAN_FRONTEND", "noninteractive"));
        found().expect("etcd is on the PATH after its installation")
    };
    found().unwrap_or_else(install)
}

/// Returns user and group of the servers, because Postgres refuses to run as root; `None` if this process is not root.
pub(super) fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |flag| {
        let output = Command::new("id").args([flag, "postgres"]).output().expect("id");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a user postgres, whom Postgres can run as")
    };
    Some((id("-u"), id("-g")))
}

/// Creates a directory owned by this user.
pub(super) fn directory_of(path: &Path, user: Option<(u32, u32)>) {
    fs::create_dir(path).expect("a directory");
    if let Some((uid, gid)) = user
        && fs::metadata(path).expect("its owner").uid() != uid
    {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("chown");
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
