//! `howdah schedule …`: one file per kind of command.

mod act;
mod define;
mod list;
mod show;

use clap::Subcommand;

use super::{context::Global, failure::Failure};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Create(define::CreateArgs),
    Update(define::UpdateArgs),
    List(list::Args),
    Show(show::Args),
    Pause(act::PauseArgs),
    Resume(act::ResumeArgs),
    Delete(act::DeleteArgs),
    Run(act::RunArgs),
}

pub(super) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Create(args) => define::create(args, global),
        Command::Update(args) => define::update(args, global),
        Command::List(args) => list::run(&args, global),
        Command::Show(args) => show::run(&args, global),
        Command::Pause(args) => act::pause(&args, global),
        Command::Resume(args) => act::resume(&args, global),
        Command::Delete(args) => act::delete(&args, global),
        Command::Run(args) => act::run(&args, global),
    }
}
