//! Flags of workers that run processes, for one job or for many.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{
    super::{failure::Failure, values},
    kind::Kind,
};
use crate::workers::{
    exec::{Exec, MAX_RESULT_BYTES, StopTokens, Watchman},
    lines::{Lines, Replace},
    program::Program,
};

/// Flags that conflict with --exec and --argv. All flags of this group list them, because clap does not check `requires` of a
/// flag that conflicts with another one.
const OTHERS: [&str; 2] = ["post", "sql"];
/// Flags that conflict with the options of --lines: the flags in `OTHERS`, and --max-output, which conflicts with --lines.
const NO_LINES: [&str; 3] = ["post", "sql", "max_output"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Processes")]
pub(super) struct ProcessArgs {
    /// Run this command for each job, with sh -c
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Run this program for each job, without a shell; the rest of the command line is its arguments
    #[arg(long, value_name = "PROGRAM [ARG]", num_args = 1.., allow_hyphen_values = true)]
    argv: Vec<String>,
    /// Let one process of --exec or --argv serve many jobs, as lines of JSON on its stdin and stdout
    #[arg(long, requires = "program", conflicts_with_all = ["post", "sql", "max_output"])]
    lines: bool,
    /// With --lines: run at most this many processes at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    processes: u32,
    /// With --lines: replace a process after this many jobs
    #[arg(long, value_name = "N", requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = clap::value_parser!(u64).range(1..))]
    process_jobs: Option<u64>,
    /// With --lines: replace a process after this time
    #[arg(long, value_name = "DURATION", requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = values::duration)]
    process_age: Option<Duration>,
    /// Pass only these variables and PATH to the command [default: all variables]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = variable, requires = "program",
          conflicts_with_all = OTHERS)]
    env: Option<Vec<String>>,
    /// Run the command in this directory
    #[arg(long, value_name = "DIR", requires = "program", conflicts_with_all = OTHERS)]
    dir: Option<PathBuf>,
    /// Maximum size of a result in bytes; with more, the command is killed or the statement is cancelled, and the job fails for
    /// good
    #[arg(long, value_name = "BYTES", default_value_t = MAX_RESULT_BYTES as u64, requires = "bounded", conflicts_with = "post",
          value_parser = clap::value_parser!(u64).range(1..=64 << 20))]
    pub(super) max_output: u64,
    /// Show the command's stderr
    #[arg(long, short, requires = "program", conflicts_with_all = OTHERS)]
    verbose: bool,
}

/// Checks a value of --env, the name of a variable. An empty name is accepted: `--env ''` passes no variable except PATH.
fn variable(name: &str) -> Result<String, String> {
    let is_bad = |c: char| c == '=' || c.is_control() || c.is_whitespace();
    match name.chars().find(|&c| is_bad(c)) {
        Some(bad) => {
            Err(format!("use only the variable's name, without {bad:?}; the worker's environment has its value"))
        }
        None => Ok(name.to_owned()),
    }
}

impl ProcessArgs {
    /// Creates the worker for processes, or returns `None` without `--exec` and `--argv`.
    pub(super) fn kind(&self, stop_tokens: &StopTokens) -> Result<Option<Kind>, Failure> {
        let program = match &self.exec {
            Some(command) => Program::shell(command),
            None if !self.argv.is_empty() => Program::new(self.argv.clone()),
            None => return Ok(None),
        };
        if let Some(dir) = self.dir.as_deref()
            && !dir.is_dir()
        {
            return Err(Failure::usage(format!("--dir {} is not a directory", dir.display())));
        }
        let program = program.with_env(self.env.clone()).in_dir(self.dir.clone());
        let watchman = start_watchman()?;
        if self.lines {
            let replace = Replace { after_jobs: self.process_jobs, after: self.process_age };
            let lines = Lines::new(program, self.verbose, self.processes as usize, replace, stop_tokens.clone());
            return Ok(Some(Kind::Lines(lines.watched_by(watchman))));
        }
        let exec = Exec::new(program, self.verbose, stop_tokens.clone()).with_max_result(self.max_output as usize);
        Ok(Some(Kind::Exec(exec.watched_by(watchman))))
    }
}

fn start_watchman() -> Result<Arc<Watchman>, Failure> {
    Watchman::start()
        .map_err(|error| Failure::failed(format!("cannot start the process that watches this worker: {error}")))
}
