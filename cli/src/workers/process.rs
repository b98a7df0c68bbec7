//! Processes of workers: their start, their streams in bounded memory, and their end.

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    pin::pin,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    select,
    time::{Instant, sleep_until, timeout_at},
};

use super::{attempt::KILL_AFTER, watchman::Watchman};
use crate::secrets;

/// Shell script that starts the command when it reads a line on stdin. The worker sends that line after it has registered the
/// process with the watchman. If the worker is killed earlier, the command never starts. A shell reads a line from a pipe byte by
/// byte, so the command gets the rest of stdin. The script passes the arguments on unchanged.
const START_ON_LINE: &str = "read -r go && exec \"$@\"";

/// Variable that is always passed, because it is needed to find commands.
const PATH: &str = "PATH";

/// Maximum bytes of the end of stderr in an error.
pub(super) const ERROR_TAIL_BYTES: usize = 4 << 10;

/// Maximum time to read the pipes after the end of a process. Processes that have left the group may keep them open.
const PIPES_AFTER: Duration = Duration::from_secs(5);

/// Program, and the way in which its processes run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path or name of the program, and its arguments.
    pub arguments: Vec<String>,
    /// Names of the worker's variables to pass to the program, besides `PATH`. `None`: all variables except credentials.
    pub env: Option<Vec<String>>,
    /// Directory in which the program runs. `None`: the worker's.
    pub dir: Option<PathBuf>,
    /// Whether to copy the program's stderr to the worker's stderr.
    pub verbose: bool,
    /// Ends the processes if the worker is killed.
    pub watchman: Option<Arc<Watchman>>,
    /// Time from SIGTERM to SIGKILL.
    pub kill_after: Duration,
}

impl Program {
    /// Creates a program that runs a command with `sh -c`.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::new(vec!["sh".into(), "-c".into(), command.into()])
    }

    /// Creates a program from its path and arguments, without a shell.
    pub fn new(arguments: Vec<String>) -> Self {
        Self { arguments, env: None, dir: None, verbose: false, watchman: None, kill_after: KILL_AFTER }
    }

    /// Creates a command in a separate process group, with pipes, that starts when it reads a line on stdin.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", START_ON_LINE, "sh"]).args(&self.arguments);
        if let Some(names) = &self.env {
            command.env_clear();
            let passed = names.iter().map(String::as_str).chain([PATH]);
            command.envs(passed.filter_map(|name| Some((name, variable(name)?))));
        } else {
            // Jobs do not get the credentials of the worker, unless `--env` names them.
            for name in secrets::names() {
                command.env_remove(name);
            }
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }

    /// Starts a process from a command of this program.
    pub(super) fn start(&self, mut command: Command) -> io::Result<Process> {
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let leader = pid.and_then(Pid::from_raw);
        if let (Some(leader), Some(watchman)) = (leader, &self.watchman) {
            watchman.begun(leader);
        }
        Ok(Process { child, leader, watchman: self.watchman.clone(), kill_after: self.kill_after })
    }
}

/// Returns the value of a variable. `secrets::conceal` may have moved a credential from the environment to a pipe.
fn variable(name: &str) -> Option<OsString> {
    secrets::var(name).map(OsString::from).or_else(|| std::env::var_os(name))
}

/// Process with its group: all processes that it starts. The group is killed on drop, so that no process outlives its attempt. A
/// process can leave the group with `setsid`.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// Process group; `None` after its end.
    leader: Option<Pid>,
    watchman: Option<Arc<Watchman>>,
    kill_after: Duration,
}

/// The worker's ends of the pipes to stdin, from stdout and from stderr.
pub(super) type Pipes = (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>);

/// Action after the output of a process was read to its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum AfterOutput {
    /// Waits for the end of the process, however long it takes.
    Wait,
    /// Kills the process after `kill_after`, if it has not ended by then.
    KillLater,
    /// Sends SIGTERM, and SIGKILL after `kill_after`.
    Terminate,
    /// Sends SIGKILL.
    Kill,
}

/// End of a process.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: io::Result<ExitStatus>,
    /// Whether `terminate` or `kill` ended the process.
    pub(super) is_stopped: bool,
}

impl Process {
    /// Takes the worker's ends of the pipes.
    pub(super) fn pipes(&mut self) -> Pipes {
        (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take())
    }

    /// Waits for the end of the process while `reading` reads its output. Sends SIGTERM when `terminate` resolves, and SIGKILL
    /// `kill_after` later, or when `kill` resolves. At the end, kills the remaining processes of the group.
    pub(super) async fn run(
        mut self,
        reading: impl Future<Output = AfterOutput>,
        terminate: impl Future<Output = ()>,
        kill: impl Future<Output = ()>,
    ) -> Ended {
        let (mut reading, mut terminate, mut kill) = (pin!(reading), pin!(terminate), pin!(kill));
        let (mut is_read, mut is_stopped, mut is_killed) = (false, false, false);
        let mut kill_at: Option<Instant> = None;
        let status = loop {
            let kill_later = Instant::now() + self.kill_after;
            select! {
                status = self.child.wait() => break status,
                after = &mut reading, if !is_read => {
                    is_read = true;
                    match after {
                        AfterOutput::Wait => {}
                        AfterOutput::KillLater => {
                            kill_at.get_or_insert(kill_later);
                        }
                        AfterOutput::Terminate => {
                            kill_at.get_or_insert(kill_later);
                            self.signal(Signal::TERM);
                        }
                        AfterOutput::Kill => self.signal(Signal::KILL),
                    }
                }
                () = &mut terminate, if !is_stopped => {
                    is_stopped = true;
                    kill_at.get_or_insert(kill_later);
                    self.signal(Signal::TERM);
                }
                () = &mut kill, if !is_killed => {
                    (is_stopped, is_killed) = (true, true);
                    self.signal(Signal::KILL);
                }
                () = sleep_until(kill_at.unwrap_or(kill_later)), if kill_at.is_some() && !is_killed => {
                    is_killed = true;
                    self.signal(Signal::KILL);
                }
            }
        };
        // The shell may end before the processes that it started, and the pipes end only with all of these. After SIGTERM, the
        // processes have until `kill_at` to end. After a normal end of the shell, they are killed at once.
        if let (Some(kill_at), false) = (kill_at, is_read || is_killed) {
            is_read = timeout_at(kill_at, &mut reading).await.is_ok();
        }
        self.finish();
        if !is_read {
            let _ = timeout_at(Instant::now() + PIPES_AFTER, reading).await;
        }
        Ended { status, is_stopped }
    }

    /// Sends a signal to the group. An empty group is not an error.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.leader {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Kills the remaining processes of the group. Must be called immediately after the wait for its leader, because the number
    /// of an empty group may be reused.
    fn finish(&mut self) {
        self.signal(Signal::KILL);
        if let (Some(leader), Some(watchman)) = (self.leader.take(), &self.watchman) {
            watchman.finished(leader);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Last bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    /// Whether the beginning was dropped.
    cut: bool,
}

impl Tail {
    /// Reads the stderr of a process to its end; with `verbose`, also copies it to the worker's stderr.
    pub(super) async fn read(&mut self, stderr: Option<ChildStderr>, verbose: bool) {
        let Some(mut stderr) = stderr else { return };
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
            self.push(&buffer[..length]);
            if verbose {
                let _ = tokio::io::stderr().write_all(&buffer[..length]).await;
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let surplus = self.bytes.len().saturating_sub(ERROR_TAIL_BYTES);
        self.bytes.drain(..surplus);
        self.cut |= surplus > 0;
    }

    /// Returns the tail as text, with a mark if the beginning was dropped.
    fn text(&self) -> String {
        // The cut may be within a UTF-8 character: skips its remaining bytes.
        let inside = |byte: &&u8| self.cut && **byte & 0b1100_0000 == 0b1000_0000;
        let rest = self.bytes.iter().take(3).take_while(inside).count();
        let text = String::from_utf8_lossy(&self.bytes[rest..]);
        let text = text.trim();
        if self.cut { format!("\u{2026}{text}") } else { text.to_owned() }
    }

    /// Returns the error of a failed process: the end of stderr, and the exit status or the signal.
    pub(super) fn error(&self, status: ExitStatus) -> String {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => status.to_string(),
        };
        let text = self.text();
        if text.is_empty() { how } else { format!("{text} ({how})") }
    }
}

/// Error for a line that exceeds the maximum length and was skipped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Reads the next line of at most `max` bytes into `line`, without its line break. Returns `None` at the end of the stream; a
/// read error counts as the end.
pub(super) async fn read_line(
    stream: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    max: usize,
) -> Option<Result<(), TooLong>> {
    let mut result = Ok(());
    loop {
        line.clear();
        let read = (&mut *stream).take(max as u64 + 1).read_until(b'\n', line).await;
        let is_complete = line.pop_if(|last| *last == b'\n').is_some();
        let is_end = line.is_empty() || read.is_err();
        if is_complete || is_end && result.is_err() {
            return Some(result);
        }
        if is_end {
            return None;
        }
        // The last line may lack a line break.
        if line.len() <= max && result.is_ok() {
            return Some(result);
        }
        result = Err(TooLong);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use howdah_core::config::SETTINGS;
    use tokio::io::BufReader;

    use super::*;

    /// Returns the variables that a command does not get.
    fn removed(program: &Program) -> HashSet<String> {
        let command = program.command();
        let removed = command.as_std().get_envs().filter(|(_, value)| value.is_none());
        removed.map(|(name, _)| name.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn secrets_of_howdah_are_not_passed_to_commands() {
        let removed = removed(&Program::shell("env"));
        for setting in SETTINGS.iter().filter(|setting| setting.is_secret()) {
            for variable in [setting.variable(), format!("{}_FILE", setting.variable())] {
                assert!(removed.contains(&variable), "{variable}");
            }
        }
        let others = [
            "HOWDAH_TOKEN",
            "HOWDAH_TOKEN_FILE",
            "HOWDAH_AUTH_TOKEN_FILE",
            "HOWDAH_POST_SECRET",
            "HOWDAH_STORES",
            "HOWDAH_STORES_FILE",
            "HOWDAH_OTLP_HEADERS_FILE",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "PGPASSWORD",
        ];
        for variable in others {
            assert!(removed.contains(variable), "{variable}");
        }
    }

    async fn lines(text: &str, max: usize) -> Vec<Result<String, TooLong>> {
        // Delivers the input byte by byte.
        let (mut writer, reader) = tokio::io::duplex(1);
        let bytes = text.as_bytes().to_vec();
        tokio::spawn(async move { writer.write_all(&bytes).await });
        let (mut reader, mut line, mut seen) = (BufReader::new(reader), Vec::new(), Vec::new());
        while let Some(read) = read_line(&mut reader, &mut line, max).await {
            seen.push(read.map(|()| String::from_utf8_lossy(&line).into_owned()));
        }
        seen
    }

    #[tokio::test]
    async fn lines_are_parted_and_the_last_one_needs_no_end() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(lines("one\n\ntwo\nthree", 9).await, [ok("one"), ok(""), ok("two"), ok("three")]);
        assert_eq!(lines("one\n", 9).await, [ok("one")]);
        assert_eq!(lines("", 9).await, []);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let expected = [Ok("a".to_owned()), Err(TooLong), Ok("b".to_owned()), Err(TooLong)];
        for (text, max) in [("a\n1234567890123\nb\n123456789", 4), ("a\n12\nb\n12", 1), ("a\n12345\nb\n1234", 1)] {
            assert_eq!(lines(text, max).await, expected, "{text:?}");
        }
    }

    #[test]
    fn the_tail_begins_with_a_whole_character() {
        let mut tail = Tail::default();
        tail.push("é".repeat(ERROR_TAIL_BYTES).as_bytes());
        tail.push(b"!");
        let text = tail.text();
        assert!(!text.contains('\u{fffd}'), "{text}");
        assert!(text.starts_with("…é") && text.ends_with("é!"));
    }
}
