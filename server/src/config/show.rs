//! The effective settings as a configuration file, without passwords.

use std::fmt::Write as _;

use super::{Settings, kinds::Shown, settings::ALL};

/// Every key with its meaning, its variable and its value. The result can be used as a configuration file.
pub fn as_toml(settings: &Settings) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let mut table = "";
    for setting in ALL {
        let (in_table, name) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
        if in_table != table {
            table = in_table;
            let _ = writeln!(text, "\n[{table}]");
        }
        let value = match (setting.get)(settings) {
            Shown::Text(value) => format!("{name} = {}", quoted(&value)),
            Shown::Bare(value) => format!("{name} = {value}"),
            Shown::Redacted(value) => format!("# {name} = {}", quoted(&value)),
            Shown::Unset => format!("# {name} ="),
        };
        let _ = writeln!(text, "# {} [{}]\n{value}", setting.about, setting.variable());
    }
    text
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    let inner: String = text.chars().map(escape).collect();
    format!("\"{inner}\"")
}
