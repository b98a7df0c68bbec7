//! Watchman process: outlives a killed worker, and ends its processes.
//!
//! A parent-death signal would reach the shell, but not the processes that it started. So the worker reports every process group
//! to a watchman process through a pipe. The pipe ends with the worker. Then the watchman ends unfinished groups with SIGTERM,
//! and SIGKILL 5 s later.

use std::{
    collections::HashSet,
    ffi::OsString,
    io::{self, BufRead, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{ChildStdin, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::attempt::KILL_AFTER;

/// Name of the hidden command.
const COMMAND: &str = "internal-watchman";

/// Interval at which the watchman checks whether a group has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Must be called in the first lines of `main`. If the arguments (the program's name first) are the hidden command, watches until
/// the worker ends, and returns true.
pub fn run_if_watchman(args: impl IntoIterator<Item = OsString>) -> bool {
    let is_command = args.into_iter().nth(1).is_some_and(|command| command == COMMAND);
    if is_command {
        end(left_behind(io::stdin().lock()));
    }
    is_command
}

/// Reads the lines to their end, and returns the groups that were started but not finished.
fn left_behind(lines: impl BufRead) -> HashSet<Pid> {
    let mut groups = HashSet::new();
    for line in lines.lines().map_while(Result::ok) {
        let pid = |text: &str| text.parse().ok().filter(|&number| number > 1).and_then(Pid::from_raw);
        if let Some(pid) = line.strip_prefix('+').and_then(pid) {
            groups.insert(pid);
        } else if let Some(pid) = line.strip_prefix('-').and_then(pid) {
            groups.remove(&pid);
        }
    }
    groups
}

/// Ends these groups. Forgets groups that have ended, because their numbers may be reused.
fn end(mut groups: HashSet<Pid>) {
    groups.retain(|&group| kill_process_group(group, Signal::TERM).is_ok());
    let kill_at = Instant::now() + KILL_AFTER;
    while !groups.is_empty() && Instant::now() < kill_at {
        thread::sleep(CHECK_INTERVAL);
        groups.retain(|&group| test_kill_process_group(group).is_ok());
    }
    for group in groups {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The worker's end of the pipe to the watchman process, which ends when this value is dropped.
#[derive(Debug)]
pub struct Watchman {
    pipe: Mutex<Option<ChildStdin>>,
}

impl Watchman {
    /// Starts the watchman process.
    pub fn start() -> io::Result<Arc<Self>> {
        let ourselves = if cfg!(target_os = "linux") {
            // /proc/self/exe works even if the program file was replaced.
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe()?
        };
        let mut child = Command::new(ourselves)
            .arg(COMMAND)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0) // signals to the worker's group must not reach it
            .spawn()?;
        Ok(Arc::new(Self { pipe: Mutex::new(child.stdin.take()) }))
    }

    /// Reports that a group was started.
    pub(super) fn begun(&self, group: Pid) {
        self.report('+', group);
    }

    /// Reports that a group is empty.
    pub(super) fn finished(&self, group: Pid) {
        self.report('-', group);
    }

    fn report(&self, sign: char, group: Pid) {
        let mut pipe = self.pipe.lock();
        let line = format!("{sign}{group}\n");
        if pipe.as_mut().is_some_and(|pipe| pipe.write_all(line.as_bytes()).is_err()) {
            tracing::warn!(
                "the process that ends the commands of a killed worker has ended: if this worker is killed now, its \
                 commands continue"
            );
            *pipe = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_were_not_finished_are_left_behind() {
        let lines = "+10\n+11\n-10\n+12\njunk\n+-3\n+0\n+1\n-11\n+10\n";
        let expected = [10, 12].into_iter().filter_map(Pid::from_raw).collect();
        assert_eq!(left_behind(lines.as_bytes()), expected);
    }
}
