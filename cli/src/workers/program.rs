//! How a process is started: arguments, environment, directory.

use std::{path::PathBuf, process::Stdio};

use tokio::process::Command;

/// The command starts when it reads a line on its stdin, which is sent when the watchman knows of it. If we are killed
/// before, it never starts. (A shell reads a line from a pipe byte by byte, so the rest is the command's.) The
/// arguments are passed on unchanged.
const START_ON_LINE: &str = "read -r go && exec \"$@\"";

/// This variable is always passed, because commands are found by it.
const PATH: &str = "PATH";

/// Variables of ours with credentials, or with the names of files that hold some: a command runs as the worker's user, who
/// can read them.
const SECRETS: [&str; 15] = [
    "HOWDAH_TOKEN",
    "HOWDAH_TOKEN_FILE",
    "HOWDAH_AUTH_TOKEN_FILE",
    "HOWDAH_DATABASE_URL",
    "HOWDAH_DATABASE_URL_FILE",
    "HOWDAH_LISTEN_DATABASE_URL",
    "HOWDAH_LISTEN_DATABASE_URL_FILE",
    "HOWDAH_POST_SECRET",
    "HOWDAH_READ_DATABASE_URL",
    "HOWDAH_READ_DATABASE_URL_FILE",
    "HOWDAH_STORES",
    "HOWDAH_STORES_FILE",
    "HOWDAH_TLS_KEY",
    "HOWDAH_TLS_CLIENT_CERT",
    "HOWDAH_TLS_CLIENT_KEY",
];

/// A program, and the environment it runs in.
#[derive(Clone, Debug)]
pub struct Program {
    arguments: Vec<String>,
    /// Variables of ours that are passed; `None`: all of them.
    env: Option<Vec<String>>,
    dir: Option<PathBuf>,
}

impl Program {
    /// A command for `sh -c`.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::of(vec!["sh".into(), "-c".into(), command.into()])
    }

    /// A program and its arguments, without a shell.
    pub fn of(arguments: Vec<String>) -> Self {
        Self { arguments, env: None, dir: None }
    }

    /// Passes only these variables of our environment, and `PATH`.
    #[must_use]
    pub fn with_env(self, names: Option<Vec<String>>) -> Self {
        Self { env: names, ..self }
    }

    /// Runs it in this directory.
    #[must_use]
    pub fn in_dir(self, dir: Option<PathBuf>) -> Self {
        Self { dir, ..self }
    }

    /// A process group of its own, with pipes, that starts when it reads a line.
    pub(super) fn starting_on_line(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", START_ON_LINE, "sh"]).args(&self.arguments);
        if let Some(names) = &self.env {
            command.env_clear();
            let passed = names.iter().map(String::as_str).chain([PATH]);
            command.envs(passed.filter_map(|name| Some((name, std::env::var_os(name)?))));
        } else {
            // The credentials of the worker are not those of the jobs. `--env` passes one on purpose.
            for name in SECRETS {
                command.env_remove(name);
            }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use howdah_server::config::SETTINGS;

    use super::*;

    /// The variables that a command does not get.
    fn removed(program: &Program) -> HashSet<String> {
        let command = program.starting_on_line();
        let removed = command.as_std().get_envs().filter(|(_, value)| value.is_none());
        removed.map(|(name, _)| name.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn no_secret_of_ours_is_passed_on() {
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
        ];
        for variable in others {
            assert!(removed.contains(variable), "{variable}");
        }
    }
}
