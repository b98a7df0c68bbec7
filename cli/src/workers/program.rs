//! Arguments, environment and directory of a process.

use std::{ffi::OsString, path::PathBuf, process::Stdio};

use tokio::process::Command;

use crate::secrets;

/// Shell script that starts the command when it reads a line on stdin. The worker sends that line after it has registered the
/// process with the watchman. If the worker is killed earlier, the command never starts. A shell reads a line from a pipe byte by
/// byte, so the command gets the rest of stdin. The script passes the arguments on unchanged.
const START_ON_LINE: &str = "read -r go && exec \"$@\"";

/// Variable that is always passed, because it is needed to find commands.
const PATH: &str = "PATH";

/// Program with its arguments, environment and directory.
#[derive(Clone, Debug)]
pub struct Program {
    arguments: Vec<String>,
    /// Names of the worker's variables to pass to the program. `None`: all variables.
    env: Option<Vec<String>>,
    dir: Option<PathBuf>,
}

impl Program {
    /// Creates a program that runs a command with `sh -c`.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::new(vec!["sh".into(), "-c".into(), command.into()])
    }

    /// Creates a program from its path and arguments, without a shell.
    pub fn new(arguments: Vec<String>) -> Self {
        Self { arguments, env: None, dir: None }
    }

    /// Passes only these variables of the worker's environment, and `PATH`.
    #[must_use]
    pub fn with_env(self, names: Option<Vec<String>>) -> Self {
        Self { env: names, ..self }
    }

    /// Runs the program in this directory.
    #[must_use]
    pub fn in_dir(self, dir: Option<PathBuf>) -> Self {
        Self { dir, ..self }
    }

    /// Creates a command in a separate process group, with pipes, that starts when it reads a line on stdin.
    pub(super) fn starting_on_line(&self) -> Command {
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
}

/// Returns the value of a variable. `secrets::conceal` may have moved a credential from the environment to a pipe.
fn variable(name: &str) -> Option<OsString> {
    secrets::var(name).map(OsString::from).or_else(|| std::env::var_os(name))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use howdah_core::config::SETTINGS;

    use super::*;

    /// Returns the variables that a command does not get.
    fn removed(program: &Program) -> HashSet<String> {
        let command = program.starting_on_line();
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
}
