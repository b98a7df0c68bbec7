//! The effective settings as a configuration file, without passwords.

use std::fmt::Write as _;

use super::{Settings, StoreConfig, formats::Shown, settings::ALL, url::redacted};

/// Returns every setting with its description, environment variable and value. The result is a valid configuration
/// file.
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
    // Stores are printed as comments: their URLs lack the passwords, so the text cannot configure a broker.
    for store in &settings.broker.stores {
        text.push_str(&store_text(store));
    }
    text
}

/// Formats a store as a TOML table in comments.
fn store_text(store: &StoreConfig) -> String {
    let mut keys = vec![format!("name = {}", quoted(&store.name))];
    keys.extend(store.number.map(|number| format!("number = {number}")));
    keys.push(format!("database_url = {}", quoted(&redacted(&store.database_url))));
    let listen = store.listen_database_url.as_deref();
    keys.extend(listen.map(|url| format!("listen_database_url = {}", quoted(&redacted(url)))));
    let read = store.read_database_url.as_deref();
    keys.extend(read.map(|url| format!("read_database_url = {}", quoted(&redacted(url)))));
    keys.push(format!("schema = {}", quoted(&store.schema)));
    keys.extend((!store.new_types).then(|| "new_types = false".to_owned()));
    format!("\n# [[stores]]\n# {}\n", keys.join("\n# "))
}

/// Formats a TOML basic string.
fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    };
    let inner: String = text.chars().map(escape).collect();
    format!("\"{inner}\"")
}
