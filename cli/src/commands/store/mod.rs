//! `howdah store …`: lists, adds, closes and opens the stores of a broker, which are its databases.

mod add;
mod drain;
mod list;
mod open;
mod reload;
mod shown;

use clap::Subcommand;

use super::{context::Global, failure::Failure};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    List(list::Args),
    Add(add::Args),
    Reload(reload::Args),
    Drain(drain::Args),
    Open(open::Args),
}

pub(super) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::List(args) => list::run(&args, global),
        Command::Add(args) => add::run(&args, global),
        Command::Reload(args) => reload::run(&args, global).map(drop),
        Command::Drain(args) => drain::run(&args, global),
        Command::Open(args) => open::run(&args, global),
    }
}
