//! A process that outlives a worker that is killed, and ends its commands.
//!
//! A death signal of the parent would reach the shell, but not the processes it started. So the worker tells a process
//! of its own about every group, through a pipe. When the pipe ends, the worker has ended. Then groups that are not
//! finished get SIGTERM, and SIGKILL 5 s later.

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

use super::KILL_AFTER;

/// The hidden command.
const COMMAND: &str = "internal-watchman";

/// How often the watchman checks whether a group is gone.
const LOOK: Duration = Duration::from_millis(20);

/// For the first lines of `main`: if the arguments (the program's name first) are the hidden command, watches until the
/// worker ends, and returns true.
pub fn run_if_watchman(args: impl IntoIterator<Item = OsString>) -> bool {
    let is_command = args.into_iter().nth(1).is_some_and(|command| command == COMMAND);
    if is_command {
        end(left_behind(io::stdin().lock()));
    }
    is_command
}

/// The groups that were started and not finished when the lines ended.
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

/// Ends the rest of these groups. A group that is gone is dropped: its number may be used again.
fn end(mut groups: HashSet<Pid>) {
    groups.retain(|&group| kill_process_group(group, Signal::TERM).is_ok());
    let kill_at = Instant::now() + KILL_AFTER;
    while !groups.is_empty() && Instant::now() < kill_at {
        thread::sleep(LOOK);
        groups.retain(|&group| test_kill_process_group(group).is_ok());
    }
    for group in groups {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The worker's end of the pipe. When it is dropped, the watchman ends.
#[derive(Debug)]
pub struct Watchman {
    told: Mutex<Option<ChildStdin>>,
}

impl Watchman {
    /// Starts the process.
    pub fn start() -> io::Result<Arc<Self>> {
        let ourselves = if cfg!(target_os = "linux") {
            // This also works if the file was replaced since.
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe()?
        };
        let mut child = Command::new(ourselves)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0) // signals to our group are not for it
            .spawn()?;
        Ok(Arc::new(Self { told: Mutex::new(child.stdin.take()) }))
    }

    /// A group was started.
    pub(super) fn begun(&self, group: Pid) {
        self.tell('+', group);
    }

    /// A group is empty.
    pub(super) fn finished(&self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&self, sign: char, group: Pid) {
        let mut told = self.told.lock();
        let line = format!("{sign}{group}\n");
        if told.as_mut().is_some_and(|pipe| pipe.write_all(line.as_bytes()).is_err()) {
            tracing::warn!("the watchman process has ended: if this worker is killed now, its commands go on");
            *told = None;
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
