//! Generates the tables of the settings of a broker.

use howdah_core::config::{SETTINGS, Setting};

use howdah_core::numbers::grouped_in;

use super::{code, markdown};

/// Returns a heading and a table for each TOML table of the configuration file. Top-level keys come first.
pub(super) fn table(_: &[&str]) -> String {
    let mut tables: Vec<&str> = SETTINGS.iter().map(file_table).collect();
    tables.dedup();
    let one = |table: &str| {
        let rows = SETTINGS.iter().filter(|setting| file_table(setting) == table).map(row);
        let rows = markdown(["key", "flag", "variable", "default", "bounds", "meaning"], rows);
        if table.is_empty() { rows } else { format!("### The table `[{table}]`\n\n{rows}") }
    };
    tables.into_iter().map(one).collect::<Vec<_>>().join("\n")
}

fn file_table(setting: &Setting) -> &'static str {
    setting.key.rsplit_once('.').map_or("", |(table, _)| table)
}

fn row(setting: &Setting) -> [String; 6] {
    let default = setting.default_value().unwrap_or_default();
    let bounds = grouped_in(&(setting.bounds)());
    [code(setting.key), code(flag(setting)), code(setting.variable()), code(default), bounds, setting.about.to_owned()]
}

/// Returns the flag of `howdah serve` for the setting; empty if it has no flag.
fn flag(setting: &Setting) -> String {
    let mut command = crate::commands::command();
    // `build` propagates the global flags to the subcommands.
    command.build();
    let serve = command.find_subcommand("serve").expect("howdah serve");
    let name = setting.key.replace('_', "-");
    let names = [name.clone(), format!("no-{name}")];
    let flag = names.into_iter().find(|name| serve.get_arguments().any(|flag| flag.get_long() == Some(name)));
    flag.map(|flag| format!("--{flag}")).unwrap_or_default()
}
