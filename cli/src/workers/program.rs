//! What a process is made of: arguments, environment, directory.

use std::{path::PathBuf, process::Stdio};

use tokio::process::Command;

/// A command begins when a line comes on its stdin: when the watchman knows of it. Were we killed before,
/// nothing would have begun. (A shell reads a line from a pipe byte by byte: the rest is the command's.) The
/// arguments are passed on as they are.
const GATE: &str = "read -r go && exec \"$@\"";

/// Always passed: a command is found by it.
const PATH: &str = "PATH";

/// What to start, and in which surroundings.
#[derive(Clone, Debug)]
pub struct Program {
    arguments: Vec<String>,
    /// Variables of our own that it gets; `None`: all of them.
    env: Option<Vec<String>>,
    dir: Option<PathBuf>,
}

impl Program {
    /// A command for `sh -c`.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::of(vec!["sh".into(), "-c".into(), command.into()])
    }

    /// A program and its arguments: no shell looks at them.
    pub fn of(arguments: Vec<String>) -> Self {
        Self { arguments, env: None, dir: None }
    }

    /// Passes only these variables of our own environment, and `PATH`.
    #[must_use]
    pub fn with_env(self, names: Option<Vec<String>>) -> Self {
        Self { env: names, ..self }
    }

    /// Starts it in this directory.
    #[must_use]
    pub fn in_dir(self, dir: Option<PathBuf>) -> Self {
        Self { dir, ..self }
    }

    /// A process group of its own that begins when it reads a line, with pipes.
    pub(super) fn gated(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", GATE, "sh"]).args(&self.arguments);
        if let Some(names) = &self.env {
            command.env_clear();
            let passed = names.iter().map(String::as_str).chain([PATH]);
            command.envs(passed.filter_map(|name| Some((name, std::env::var_os(name)?))));
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }
}

impl From<&str> for Program {
    fn from(command: &str) -> Self {
        Self::shell(command)
    }
}

impl From<String> for Program {
    fn from(command: String) -> Self {
        Self::shell(command)
    }
}

impl From<&String> for Program {
    fn from(command: &String) -> Self {
        Self::shell(command)
    }
}
