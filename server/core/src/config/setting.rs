//! The type of a setting: key, description, and functions that parse and format the value.

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
