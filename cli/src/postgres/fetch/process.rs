use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use super::super::serverlog;

/// Maximum time for a killed process to end.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Runs a command to its end, with its output in `log`. The error contains the exit status and the end of the output.
///
/// If the future is dropped, the command and all its child processes are killed.
pub(super) async fn run(command: Command, log: &Path) -> Result<(), String> {
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
