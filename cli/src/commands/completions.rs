//! `howdah completions`: prints a completion script for a shell.

use clap_complete::Shell;

use super::{failure::Failure, output::Output};

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  howdah completions bash > ~/.local/share/bash-completion/completions/howdah
  howdah completions zsh > ~/.zfunc/_howdah
  howdah completions fish > ~/.config/fish/completions/howdah.fish")]
pub(super) struct Args {
    /// Shell to generate the script for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "howdah", &mut script);
    let mut output = Output::new();
    output.line(String::from_utf8_lossy(&script).trim_end())?;
    output.flush()
}
