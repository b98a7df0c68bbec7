//! What a setting is: a key, its texts, and how its value is read and written.

use super::{
    Config,
    kinds::{Kind, Shown},
    settings::ALL,
};
use crate::logging;

/// Everything that is configured: the broker, and how it logs.
#[derive(Clone)]
pub struct Settings {
    /// The broker. Its `database_url` is empty until something sets it.
    pub broker: Config,
    /// How it logs.
    pub log: logging::Options,
}

impl Default for Settings {
    fn default() -> Self {
        Self { broker: Config::new(""), log: logging::Options::default() }
    }
}

/// One setting.
pub struct Setting {
    /// The key in the file; a dot separates the table from the key.
    pub key: &'static str,
    /// What it does, without a full stop.
    pub about: &'static str,
    /// The accepted values, in words; empty if the kind needs no explanation.
    pub bounds: fn() -> String,
    /// Reads its value as TOML would write it.
    pub(super) get: fn(&Settings) -> Shown,
    /// Sets its value; the error says what is wrong with the text.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Setting {
    /// Its environment variable: `HOWDAH_LIMITS_MESSAGE_BYTES`.
    pub fn variable(&self) -> String {
        variable(self.key)
    }

    /// Whether its value must not be repeated in an error.
    pub fn is_secret(&self) -> bool {
        self.key.ends_with("database_url")
    }

    /// Its default as TOML writes it, without quotes; `None` if it has none, or another in each process.
    pub fn default_value(&self) -> Option<String> {
        match (self.get)(&Settings::default()) {
            Shown::Text(text) | Shown::Bare(text) => Some(text),
            Shown::Redacted(_) | Shown::Unset => None,
        }
    }

    /// The setting of that key.
    pub fn of(key: &str) -> Option<&'static Self> {
        ALL.iter().find(|setting| setting.key == key)
    }
}

/// The bounds of a kind, which may be one of several types: that of the field.
pub(super) fn bounds<T, K: Kind<T>>(kind: &K, _: fn(&Settings) -> &T) -> String {
    kind.bounds()
}

/// The environment variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("HOWDAH_{}", key.replace('.', "_").to_ascii_uppercase())
}
