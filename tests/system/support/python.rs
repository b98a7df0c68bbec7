//! Python with packages, for examples in the documentation and for mock servers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Returns a Python with these packages, in a virtual environment below `target/` that is created once and rebuilt when the
/// packages change. The function blocks while `pip` runs, so call it before a broker runs.
pub fn environment(name: &str, packages: &[&str]) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(target).expect("target/tmp");
    let lock = fs::File::create(target.join(format!("{name}.lock"))).expect("a lock file");
    lock.lock().expect("the lock");
    let directory = target.join(name);
    let program = directory.join("bin/python");
    let (installed, wanted) = (directory.join("installed"), packages.join(" "));
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return program;
    }
    let _ = fs::remove_dir_all(&directory);
    for command in [
        Command::new("python3").args(["-m", "venv"]).arg(&directory),
        Command::new(&program)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"])
            .args(packages),
    ] {
        let output = command.output().expect("python3 with venv");
        let help = "HOWDAH_SKIP_PYTHON=1 leaves this test out";
        assert!(output.status.success(), "{}\n{help}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(installed, wanted).expect("installed");
    program
}
