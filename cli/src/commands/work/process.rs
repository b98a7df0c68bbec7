//! The workers that are processes: one for each job, or one for many.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{super::failure::Failure, kind::Kind};
use crate::workers::{
    exec::{Ends, Exec, MAX_RESULT_BYTES, Watchman},
    lines::{Lines, Replace},
    program::Program,
};

/// Each flag refuses them by itself: what a flag requires is not looked for when it is in conflict with what is given.
const OTHERS: [&str; 2] = ["post", "sql"];
/// Of the flags of `--lines`: the same, and what is in conflict with that.
const NO_LINES: [&str; 3] = ["post", "sql", "max_output"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Processes")]
pub(super) struct ProcessArgs {
    /// Run this command for each job, by sh -c
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Run this program for each job, without a shell; whatever follows is its arguments
    #[arg(long, value_name = "PROGRAM [ARG]", num_args = 1.., allow_hyphen_values = true)]
    argv: Vec<String>,
    /// Let one process of --exec or --argv serve many jobs: JSON lines on its stdin and stdout
    #[arg(long, requires = "program", conflicts_with_all = ["post", "sql", "max_output"])]
    lines: bool,
    /// With --lines: processes at once, at most
    #[arg(long, value_name = "N", default_value_t = 1, requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    processes: u32,
    /// With --lines: replace a process after so many jobs
    #[arg(long, value_name = "N", requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = clap::value_parser!(u64).range(1..))]
    process_jobs: Option<u64>,
    /// With --lines: replace a process after so long
    #[arg(long, value_name = "DURATION", requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = humantime::parse_duration)]
    process_age: Option<Duration>,
    /// Pass on only these variables of this worker's environment, and PATH; the default is all
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = variable, requires = "program",
          conflicts_with_all = OTHERS)]
    env: Option<Vec<String>>,
    /// Run it in this directory
    #[arg(long, value_name = "DIR", requires = "program", conflicts_with_all = OTHERS)]
    dir: Option<PathBuf>,
    /// The largest result in bytes; a command that writes more is killed, a statement that returns more is cancelled,
    /// and the job fails for good
    #[arg(long, value_name = "BYTES", default_value_t = MAX_RESULT_BYTES as u64, requires = "bounded", conflicts_with = "post",
          value_parser = clap::value_parser!(u64).range(1..=64 << 20))]
    pub(super) max_output: u64,
    /// Let its standard error through
    #[arg(long, short, requires = "program", conflicts_with_all = OTHERS)]
    verbose: bool,
}

/// The name of a variable; empty: none.
fn variable(name: &str) -> Result<String, String> {
    let is_bad = |c: char| c == '=' || c.is_control() || c.is_whitespace();
    match name.chars().find(|&c| is_bad(c)) {
        Some(bad) => Err(format!("the name of a variable has no {bad:?}; the value is taken from the environment")),
        None => Ok(name.to_owned()),
    }
}

impl ProcessArgs {
    /// The worker, if it is of this kind.
    pub(super) fn kind(&self, ends: &Ends) -> Result<Option<Kind>, Failure> {
        let program = match &self.exec {
            Some(command) => Program::shell(command),
            None if !self.argv.is_empty() => Program::of(self.argv.clone()),
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
            let lines = Lines::new(program, self.verbose, self.processes as usize, replace, ends.clone());
            return Ok(Some(Kind::Lines(lines.watched_by(watchman))));
        }
        let exec = Exec::new(program, self.verbose, ends.clone()).with_max_result(self.max_output as usize);
        Ok(Some(Kind::Exec(exec.watched_by(watchman))))
    }
}

fn start_watchman() -> Result<Arc<Watchman>, Failure> {
    Watchman::start().map_err(|error| Failure::failed(format!("cannot start a process of our own program: {error}")))
}
