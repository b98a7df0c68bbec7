//! Generates the tables of commands in `docs/reference`.

use std::{collections::BTreeSet, fmt::Write as _};

use clap::Command;

use super::{code, markdown};

/// Returns a table of the commands with these names. The name of a command group stands for its subcommands.
pub(super) fn table(words: &[&str]) -> String {
    let all = crate::commands::command();
    let mut rows = Vec::new();
    for word in words {
        let command = all.find_subcommand(word).unwrap_or_else(|| panic!("no command {word}"));
        let name = format!("howdah {word}");
        let inside: Vec<&Command> = command.get_subcommands().collect();
        if inside.is_empty() || !command.is_subcommand_required_set() {
            rows.push(row(&name, command));
        }
        rows.extend(inside.iter().map(|command| row(&format!("{name} {}", command.get_name()), command)));
    }
    markdown(["command", "what it does"], rows)
}

/// Returns the names of all commands.
pub(super) fn all() -> BTreeSet<String> {
    crate::commands::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

/// Returns the row of a command, with its arguments but without its flags.
fn row(name: &str, command: &Command) -> [String; 2] {
    let mut usage = name.to_owned();
    for argument in command.get_positionals() {
        let value = argument.get_value_names().and_then(|names| names.first()).expect("a name for the value");
        let several = if argument.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
        let (open, close) = if argument.is_required_set() { ("", "") } else { ("[", "]") };
        let _ = write!(usage, " {open}{value}{several}{close}");
    }
    [code(usage), command.get_about().expect("what it does").to_string()]
}
