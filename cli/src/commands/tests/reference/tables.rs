//! Generates the tables of commands, of the options of a job, and of the settings of a broker and of the cluster.

use std::{collections::BTreeSet, fmt::Write as _};

use clap::Command;
use howdah_core::{
    config::{SETTINGS, Setting},
    job::options::{JobOption, OPTIONS, OptionGroup, OptionKind},
    numbers::grouped_in,
};

use super::{code, markdown};
use crate::commands::job_flags::flag_name;

/// Returns a table of all settings with their defaults and bounds, in the format of `howdah settings`.
pub(super) fn cluster_settings(_: &[&str]) -> String {
    let rows = crate::commands::settings::described().into_iter().map(|[name, default, lowest, highest, about]| {
        [code(name), code(default), grouped_in(&format!("{lowest} to {highest}")), about]
    });
    markdown(["setting", "default", "bounds", "meaning"], rows)
}

/// Returns a table of the commands with these names. The name of a command group stands for its subcommands.
pub(super) fn commands(words: &[&str]) -> String {
    let all = crate::commands::command();
    let mut rows = Vec::new();
    for word in words {
        let command = all.find_subcommand(word).unwrap_or_else(|| panic!("no command {word}"));
        let name = format!("howdah {word}");
        let inside: Vec<&Command> = command.get_subcommands().collect();
        if inside.is_empty() || !command.is_subcommand_required_set() {
            rows.push(command_row(&name, command));
        }
        rows.extend(inside.iter().map(|command| command_row(&format!("{name} {}", command.get_name()), command)));
    }
    markdown(["command", "what it does"], rows)
}

/// Returns the names of all commands.
pub(super) fn all_commands() -> BTreeSet<String> {
    crate::commands::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

/// Returns the row of a command, with its arguments but without its flags.
fn command_row(name: &str, command: &Command) -> [String; 2] {
    let mut usage = name.to_owned();
    for argument in command.get_positionals() {
        let value = argument.get_value_names().and_then(|names| names.first()).expect("a name for the value");
        let several = if argument.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
        let (open, close) = if argument.is_required_set() { ("", "") } else { ("[", "]") };
        let _ = write!(usage, " {open}{value}{several}{close}");
    }
    [code(usage), command.get_about().expect("what it does").to_string()]
}

/// Returns a heading and a table for each group of job options.
pub(super) fn options(_: &[&str]) -> String {
    let group = |group: OptionGroup| {
        let rows = OPTIONS.iter().filter(|option| option.group == group).map(|option| {
            let needs = option.needs.iter().map(code).collect::<Vec<_>>().join(" or ");
            let needs = if needs.is_empty() { needs } else { format!("needs {needs}") };
            let about = [option.about, &needs, option.notes].into_iter().filter(|part| !part.is_empty());
            let about = about.collect::<Vec<_>>().join("; ");
            [code(option.name), option.default.to_owned(), bounds(option), about]
        });
        format!("### {}\n\n{}", group.heading(), markdown(["option", "default", "bounds", "meaning"], rows))
    };
    OptionGroup::ALL.into_iter().map(group).collect::<Vec<_>>().join("\n")
}

fn bounds(option: &JobOption) -> String {
    match option.kind {
        OptionKind::Integer(i64::MIN, i64::MAX) => "any whole number".into(),
        OptionKind::Integer(0, i64::MAX) => "an id".into(),
        OptionKind::Word(words) => words.iter().map(code).collect::<Vec<_>>().join(", "),
        // Omits the example after `, such as`.
        OptionKind::Time => grouped_in(option.kind.to_string().split(", such as").next().unwrap_or_default()),
        kind => grouped_in(&kind.to_string()),
    }
}

/// Returns a table of the names of each option in each interface.
pub(super) fn option_names(_: &[&str]) -> String {
    let rows = OPTIONS.iter().map(|option| {
        let (flag, header, sql) = if option.is_of_request() {
            (String::new(), String::new(), "in `enqueue_batch`".to_owned())
        } else {
            (format!("--{} {}", flag_name(option.name), option.kind.value_name()), header(option), argument(option))
        };
        [code(option.name), code(flag), code(header), if option.is_of_request() { sql } else { code(sql) }]
    });
    markdown(["gRPC field, JSON, HTTP query", "command line", "HTTP header", "SQL argument"], rows)
}

/// Returns the HTTP header of an option: `Howdah-Key-Hold` for `key_hold`. The trace context has the standard headers.
fn header(option: &JobOption) -> String {
    match option.name {
        "headers" => "Howdah-Header-NAME".into(),
        "traceparent" | "tracestate" => option.name.into(),
        name => {
            let capital = |word: &str| format!("{}{}", word[..1].to_uppercase(), &word[1..]);
            let part = |part: &str| part.split('_').map(capital).collect::<Vec<_>>().join("-");
            format!("Howdah-{}", name.split('.').map(part).collect::<Vec<_>>().join("."))
        }
    }
}

/// Returns the SQL argument of an option. A nested option is a key of the outer argument's object.
fn argument(option: &JobOption) -> String {
    option.name.split('.').next().unwrap_or_default().to_owned()
}

/// Returns a heading and a table for each TOML table of the configuration file. Top-level keys come first.
pub(super) fn settings(_: &[&str]) -> String {
    let mut tables: Vec<&str> = SETTINGS.iter().map(file_table).collect();
    tables.dedup();
    let one = |table: &str| {
        let rows = SETTINGS.iter().filter(|setting| file_table(setting) == table).map(setting_row);
        let rows = markdown(["key", "flag", "variable", "default", "bounds", "meaning"], rows);
        if table.is_empty() { rows } else { format!("### The table `[{table}]`\n\n{rows}") }
    };
    tables.into_iter().map(one).collect::<Vec<_>>().join("\n")
}

fn file_table(setting: &Setting) -> &'static str {
    setting.key.rsplit_once('.').map_or("", |(table, _)| table)
}

fn setting_row(setting: &Setting) -> [String; 6] {
    let default = setting.default_value().unwrap_or_default();
    let bounds = grouped_in(&(setting.bounds)());
    [
        code(setting.key),
        code(setting_flag(setting)),
        code(setting.variable()),
        code(default),
        bounds,
        setting.about.to_owned(),
    ]
}

/// Returns the flag of `howdah serve` for the setting; empty if it has no flag.
fn setting_flag(setting: &Setting) -> String {
    let mut command = crate::commands::command();
    // `build` propagates the global flags to the subcommands.
    command.build();
    let serve = command.find_subcommand("serve").expect("howdah serve");
    let name = setting.key.replace('_', "-");
    let names = [name.clone(), format!("no-{name}")];
    let flag = names.into_iter().find(|name| serve.get_arguments().any(|flag| flag.get_long() == Some(name)));
    flag.map(|flag| format!("--{flag}")).unwrap_or_default()
}
