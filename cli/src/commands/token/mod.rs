//! `howdah token`: creates, lists and revokes tokens.

mod create;
mod list;
mod revoke;

use howdah_engine::access::Token;

use super::{context::Global, failure::Failure, output::Output};

/// Commands for tokens.
#[derive(Debug, clap::Subcommand)]
#[allow(clippy::large_enum_variant)] // one value per process
pub(super) enum Command {
    Create(create::Args),
    List(list::Args),
    Revoke(revoke::Args),
    /// Print a new token without storing it, for the file of `howdah serve --auth-token-file`
    #[command(after_help = "\
Each line of that file has a token, the name of its principal, and its scopes:
  echo \"$(howdah token generate) ops admin:* read:* operate:*\" >> tokens")]
    Generate,
}

pub(super) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Create(args) => create::run(&args, global),
        Command::List(args) => list::run(&args, global),
        Command::Revoke(args) => revoke::run(args, global),
        Command::Generate => {
            let mut output = Output::new();
            output.line(Token::generate().secret())?;
            output.flush()
        }
    }
}
