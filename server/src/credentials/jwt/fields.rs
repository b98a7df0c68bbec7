//! Reads the fields of a TOML table, each once. A field that was not read is an error. Each error names its field.

use howdah_engine::access::{MAX_SCOPES, Scope};
use toml::{Table, Value};

/// Fields of a TOML table that were not read yet.
pub(super) struct Fields(Table);

impl Fields {
    pub(super) fn new(table: Table) -> Self {
        Self(table)
    }

    /// Reads a required string.
    pub(super) fn text(&mut self, key: &str) -> Result<String, String> {
        self.optional_text(key)?.ok_or_else(|| format!("{key} is missing"))
    }

    /// Reads an optional string.
    pub(super) fn optional_text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(format!("{key}: must be a string that is not empty")),
        }
    }

    /// Reads a string, or a list of strings.
    pub(super) fn texts(&mut self, key: &str) -> Result<Option<Vec<String>>, String> {
        let text = |value| match value {
            Value::String(text) => Ok(text),
            _ => Err(format!("{key}: must be a string, or a list of strings")),
        };
        match self.0.remove(key) {
            None => Ok(None),
            Some(Value::Array(values)) => values.into_iter().map(text).collect::<Result<_, _>>().map(Some),
            Some(value) => text(value).map(|text| Some(vec![text])),
        }
    }

    /// Reads a scope, or a list of scopes.
    pub(super) fn scopes(&mut self, key: &str) -> Result<Option<Vec<Scope>>, String> {
        let Some(texts) = self.texts(key)? else { return Ok(None) };
        if texts.len() > MAX_SCOPES {
            return Err(format!("{key}: has {} scopes; at most {MAX_SCOPES} are allowed", texts.len()));
        }
        let scopes: Result<_, String> = texts.iter().map(|text| Scope::parse(text)).collect();
        scopes.map(Some).map_err(|problem| format!("{key}: {problem}"))
    }

    /// Reads an array of tables, `[[name]]`.
    pub(super) fn tables(&mut self, key: &str) -> Result<Vec<Table>, String> {
        let table = |value| match value {
            Value::Table(table) => Ok(table),
            _ => Err(format!("{key}: must be a list of tables: write [[{key}]]")),
        };
        match self.0.remove(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) => values.into_iter().map(table).collect(),
            Some(_) => Err(format!("{key}: must be a list of tables: write [[{key}]]")),
        }
    }

    /// Fails if a field of the table was not read.
    pub(super) fn end(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("{key}: unknown key")),
        }
    }
}
