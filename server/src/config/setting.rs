//! The type of a setting: a key, its texts, and functions that parse and format its value.

use super::{
    Config,
    formats::{Kind, Shown},
    settings::ALL,
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
    /// Key in the file; a dot separates the table from the key.
    pub key: &'static str,
    /// Meaning of the setting, without a full stop.
    pub about: &'static str,
    /// Description of the accepted values; empty if none is needed.
    pub bounds: fn() -> String,
    /// Returns the value in TOML format.
    pub(super) get: fn(&Settings) -> Shown,
    /// Parses a text and sets the value. The error continues a sentence that begins with the text.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Setting {
    /// Returns the environment variable of the setting, such as `HOWDAH_LIMITS_MESSAGE_BYTES`.
    pub fn variable(&self) -> String {
        variable(self.key)
    }

    /// Whether errors must not repeat the value.
    pub fn is_secret(&self) -> bool {
        self.key.ends_with("database_url")
    }

    /// Returns the default in TOML format without quotes. `None` if there is no default, or if it depends on the process.
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

/// Returns the bounds of a kind. The second argument selects the type by the setting's field.
pub(super) fn bounds<T, K: Kind<T>>(kind: &K, _: fn(&Settings) -> &T) -> String {
    kind.bounds()
}

/// Returns the environment variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("HOWDAH_{}", key.replace('.', "_").to_ascii_uppercase())
}
