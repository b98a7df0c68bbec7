//! Hides credentials of environment variables from other programs.
//!
//! The initial environment of a process is visible to processes of the same user, and on Linux to its child processes
//! (`/proc/PID/environ`). So commands that start other programs re-execute themselves without these variables, and receive the
//! values through a pipe. On Linux, other processes of the same user can then neither read the memory of these commands nor
//! trace them.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    process::Command,
    sync::OnceLock,
};

use howdah_core::config::Environment;

/// Variables whose values are credentials.
const VALUES: [&str; 6] = [
    "HOWDAH_TOKEN",
    "HOWDAH_DATABASE_URL",
    "HOWDAH_LISTEN_DATABASE_URL",
    "HOWDAH_POST_SECRET",
    "HOWDAH_READ_DATABASE_URL",
    "HOWDAH_STORES",
];

/// Variables with credentials of Postgres and OpenTelemetry. `howdah work --sql` keeps them in its environment: it needs
/// PGPASSWORD, and starts no programs.
const OF_LIBRARIES: [&str; 3] = ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "PGPASSWORD"];

/// Variables with paths of files with credentials. They stay in the environment of this process, because every program of this
/// user can read the files anyway. Programs that this process starts do not get them.
const OTHERS: [&str; 15] = [
    "HOWDAH_TOKEN_FILE",
    "HOWDAH_AUTH_TOKEN_FILE",
    "HOWDAH_DATABASE_URL_FILE",
    "HOWDAH_LISTEN_DATABASE_URL_FILE",
    "HOWDAH_OTLP_HEADERS_FILE",
    "HOWDAH_READ_DATABASE_URL_FILE",
    "HOWDAH_STORES_FILE",
    "HOWDAH_TLS_KEY",
    "HOWDAH_TLS_CLIENT_CERT",
    "HOWDAH_TLS_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "PGPASSFILE",
    "PGSERVICEFILE",
    "PGSSLKEY",
    PIPE_VAR,
];

/// Variable with the file descriptor of the pipe and the id of the process that may read it: `FD:PID`.
const PIPE_VAR: &str = "HOWDAH_INTERNAL_SECRETS";

/// Maximum number of bytes that always fit into an unread pipe.
const MAX_BYTES: usize = 16 << 10;

/// Commands that start other programs.
const COMMANDS_WITH_CHILDREN: [&str; 2] = ["work", "dev"];

static PIPED: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Returns the names of variables that are not passed to programs that this process starts.
pub fn names() -> impl Iterator<Item = &'static str> {
    VALUES.into_iter().chain(OF_LIBRARIES).chain(OTHERS)
}

/// Returns the value of a variable, from the environment or from the pipe.
pub fn var(name: &str) -> Option<String> {
    PIPED.get().and_then(|piped| piped.get(name).cloned()).or_else(|| env::var(name).ok())
}

/// Returns the environment for the configuration, including the values from the pipe.
pub fn environment() -> Environment {
    let piped = PIPED.get().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
    Environment::of_process().with(piped)
}

/// Must be called in the first lines of `main`, before any thread starts. If the command starts other programs, re-executes it
/// without credentials in its environment, and protects its memory.
pub fn conceal(args: impl IntoIterator<Item = OsString>) -> Result<(), String> {
    let args: Vec<OsString> = args.into_iter().collect();
    if !args.iter().skip(1).any(|arg| COMMANDS_WITH_CHILDREN.iter().any(|command| arg == command)) {
        return Ok(());
    }
    match pipe_fd() {
        Some(fd) => drop(PIPED.set(read(&fd).map_err(|error| format!("cannot read credentials from pipe: {error}"))?)),
        None => reexec_without_credentials(&args),
    }
    // Prevents processes of this user from reading the memory, environment and open files of this process, and from tracing it.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    Ok(())
}

/// File descriptor of the pipe, if this process was re-executed.
fn pipe_fd() -> Option<String> {
    let value = env::var(PIPE_VAR).ok()?;
    let (fd, pid) = value.split_once(':')?;
    (pid == std::process::id().to_string() && fd.bytes().all(|byte| byte.is_ascii_digit())).then(|| fd.to_owned())
}

fn read(fd: &str) -> io::Result<BTreeMap<String, String>> {
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let mut text = String::new();
    File::open(format!("{folder}/{fd}"))?.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Re-executes this process without credentials in its environment. Returns if there are no credentials, or if that fails.
fn reexec_without_credentials(args: &[OsString]) {
    let is_sql = args.iter().any(|arg| arg.to_string_lossy().starts_with("--sql"));
    let names = VALUES.iter().chain(OF_LIBRARIES.iter().filter(|_| !is_sql));
    let values = names.filter_map(|name| Some((*name, env::var(name).ok().filter(|value| !value.is_empty())?)));
    let values: BTreeMap<&str, String> = values.collect();
    let text = serde_json::to_string(&values).unwrap_or_default();
    if values.is_empty() || text.len() > MAX_BYTES {
        return;
    }
    let Ok((reader, mut writer)) = io::pipe() else { return };
    let open = rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::empty());
    if let (Ok(()), Ok(()), Ok(program)) = (open, writer.write_all(text.as_bytes()), env::current_exe()) {
        let mut command = Command::new(program);
        if let Some(name) = args.first() {
            command.arg0(name);
        }
        command.args(&args[1..]).env(PIPE_VAR, format!("{}:{}", reader.as_raw_fd(), std::process::id()));
        for name in values.keys() {
            command.env_remove(name);
        }
        // `exec` returns only on failure. Then the process continues with its original environment.
        let _ = command.exec();
    }
}
