//! The type of a setting: key, description, and functions that parse and format the value. Also formats the effective
//! settings as a configuration file without passwords.

use std::fmt::Write as _;

use super::{
    Config, StoreConfig,
    formats::{Kind, Shown},
    settings::ALL,
    url::redacted,
};
use crate::logging;

/// The whole configuration: the broker and its logging.
#[derive(Clone)]
pub struct Settings {
    /// Configuration of the broker. `database_url` is empty if no source sets it.
    pub broker: Config,
    /// Configuration of logging.
    pub log: logging::Options,
}

impl Default for Settings {
    fn default() -> Self {
        Self { broker: Config::new(""), log: logging::Options::default() }
    }
}

/// One setting.
pub struct Setting {
    /// Key in the configuration file. A dot separates the table from the key: `limits.connections`.
    pub key: &'static str,
    /// Description of the setting for the reference page, without a full stop.
    pub about: &'static str,
    /// Description of the accepted values; empty if none is needed.
    pub bounds: fn() -> String,
    /// Returns the setting's value in TOML format.
    pub(super) get: fn(&Settings) -> Shown,
    /// Parses the text and sets the value. The error is a phrase that completes "the value …", such as `must be a
    /// number`.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Setting {
    /// Returns the environment variable of the setting, such as `HOWDAH_LIMITS_MESSAGE_BYTES`.
    pub fn variable(&self) -> String {
        variable(self.key)
    }

    /// Whether the value may contain a password, so that errors must not repeat it.
    pub fn is_secret(&self) -> bool {
        self.key.ends_with("database_url")
    }

    /// Returns the setting's default in TOML format without quotes. `None` if the setting has no default, or if the
    /// default depends on the process.
    pub fn default_value(&self) -> Option<String> {
        match (self.get)(&Settings::default()) {
            Shown::Text(text) | Shown::Bare(text) => Some(text),
            Shown::Redacted(_) | Shown::Unset => None,
        }
    }

    /// Returns the setting with this key.
    pub fn by_key(key: &str) -> Option<&'static Self> {
        ALL.iter().find(|setting| setting.key == key)
    }
}

/// Returns the description of the values that `kind` accepts. The second argument is only used to infer the type `T`.
pub(super) fn bounds<T, K: Kind<T>>(kind: &K, _: fn(&Settings) -> &T) -> String {
    kind.bounds()
}

/// Returns the environment variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("HOWDAH_{}", key.replace('.', "_").to_ascii_uppercase())
}

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
