//! `howdah store …`: lists, closes and opens the stores of a broker, which are its databases.

mod drain;
mod list;
mod open;
mod shown;

use clap::Subcommand;

use super::{context::Global, failure::Failure};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    List(list::Args),
    Drain(drain::Args),
    Open(open::Args),
}

pub(super) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::List(args) => list::run(&args, global),
        Command::Drain(args) => drain::run(&args, global),
        Command::Open(args) => open::run(&args, global),
    }
}
