//! `howdah import …`: imports jobs from other systems.

mod pg_task;

use clap::Subcommand;

use super::{context::Global, failure::Failure};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    #[command(name = "pg_task")]
    PgTask(pg_task::Args),
}

pub(super) fn run(command: &Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::PgTask(args) => pg_task::run(args, global),
    }
}
