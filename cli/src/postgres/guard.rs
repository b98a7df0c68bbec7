use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::DevError;
use super::postmaster::StopMode;

/// The hidden command: `howdah internal-postgres <parent pid> <fast|immediate> -- <program> <arguments…>`.
pub const GUARD_COMMAND: &str = "internal-postgres";

/// Environment variable that marks a guard process. A marked process that starts a cluster fails, because it would otherwise
/// start itself recursively without end.
const MARK: &str = "HOWDAH_INTERNAL_POSTGRES";

/// Must be called in the first line of `main`. If the arguments (the program's name first) are the hidden command, this process
/// becomes Postgres.
///
/// Returns `None` for any other command. Returns the error if the exec fails; print it to standard error, which is the server's
/// log.
pub fn run_if_guard(args: impl IntoIterator<Item = OsString>) -> Option<io::Error> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != GUARD_COMMAND {
        return None;
    }
    let args: Vec<OsString> = args.collect();
    let [parent, mode, separator, program, rest @ ..] = args.as_slice() else {
        return Some(bad_arguments());
    };
    let parent = parent.to_str().and_then(|pid| pid.parse().ok());
    let mode = mode.to_str().and_then(StopMode::from_word);
    Some(match (parent, mode) {
        (Some(parent), Some(mode)) if separator == "--" => guard_main(parent, mode, program, rest),
        _ => bad_arguments(),
    })
}

/// Ties this process to the life of its parent, then becomes `program`. Returns only on failure.
///
/// The death signal is requested here, in the new process, because changing the user clears it.
pub fn guard_main(expected_parent: u32, on_parent_death: StopMode, program: &OsStr, args: &[OsString]) -> io::Error {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(on_parent_death.signal())) {
        return error.into();
    }
    // On other systems an orphan runs until the next start stops it or removes its directory.
    #[cfg(not(target_os = "linux"))]
    let _ = on_parent_death;
    // A parent that died before the request for the death signal sends no signal. A changed parent process id reveals this
    // case.
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent.and_then(|pid| u32::try_from(pid).ok()) != Some(expected_parent) {
        return io::Error::other("the process that started PostgreSQL has ended");
    }
    let error = Command::new(program).args(args).env_remove(MARK).exec();
    io::Error::new(error.kind(), format!("cannot run {}: {error}", Path::new(program).display()))
}

/// Path of the program that knows the hidden command; by default the running program.
pub(super) fn program(howdah_binary: Option<&Path>) -> Result<PathBuf, DevError> {
    if env::var_os(MARK).is_some() {
        return Err(DevError::NotAGuard);
    }
    match howdah_binary {
        Some(path) => std::path::absolute(path).map_err(DevError::io("find", path)),
        // /proc/self/exe works even if the program file was replaced, or if the user that Postgres runs as cannot reach its
        // directory.
        None if cfg!(target_os = "linux") => Ok("/proc/self/exe".into()),
        None => env::current_exe().map_err(DevError::io("find", Path::new("the running program"))),
    }
}

/// Returns the hidden command that runs `program` and stops it when this process ends.
pub(super) fn command(guard: &Path, on_parent_death: StopMode, program: &Path, args: &[OsString]) -> Command {
    let mut command = Command::new(guard);
    command
        .args([GUARD_COMMAND, &std::process::id().to_string(), on_parent_death.word(), "--"])
        .arg(program)
        .args(args)
        .env(MARK, "1");
    command
}

/// Returns a command that runs `program`, by default the running one, and stops it when this process ends. Spawn the command on
/// a thread that lives as long as this process, because Linux ties the signal to the thread.
pub(crate) fn tied(program: Option<&Path>, args: &[String]) -> Command {
    let ourselves = env::current_exe().unwrap_or_else(|_| "howdah".into());
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    command(&ourselves, StopMode::Fast, program.unwrap_or(&ourselves), &args)
}

fn bad_arguments() -> io::Error {
    let usage = "internal-postgres <parent pid> <fast|immediate> -- <program> <arguments…>";
    io::Error::new(io::ErrorKind::InvalidInput, format!("usage: {usage}"))
}
