//! Loads the configuration from its layers: flags > environment > file > defaults. Each layer maps keys of `settings`
//! to values. An error is one line that names the flag, the variable, or the file and key of the wrong value.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use super::{
    check::check,
    setting::{Setting, Settings, variable},
    settings::ALL,
    stores::{self, StoreText},
    url::UrlFile,
};
use crate::job::ClusterSettings;

/// Names of the sources of stores: a flag, a variable (or the file that the variable names), and a list of tables in
/// the configuration file.
const STORE_FLAG: &str = "store";
const STORES_VARIABLE: &str = "HOWDAH_STORES";
const STORES_KEY: &str = "stores";

/// Maximum size of a configuration or secret file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// An error in the configuration: one line that names the source. It never contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    pub(super) fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}

/// The `HOWDAH_*` variables.
#[derive(Clone, Default)]
pub struct Environment(HashMap<String, String>);

impl Environment {
    /// Reads the `HOWDAH_*` environment variables of this process. Bytes that are not UTF-8 are replaced.
    pub fn of_process() -> Self {
        let ours = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("HOWDAH_"))?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        Self(ours.collect())
    }

    /// Adds variables.
    #[must_use]
    pub fn with(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.0.extend(variables);
        self
    }

    /// Returns the value of a variable. An empty variable counts as unset.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the value of an environment variable and its source. Instead of a secret `X`, the variable `X_FILE` may
    /// name a file that contains the secret.
    fn value_of(&self, variable: String, is_secret: bool) -> Result<Option<Given>, ConfigError> {
        let file_variable = format!("{variable}_FILE");
        let file = self.get(&file_variable).filter(|_| is_secret);
        match (self.get(&variable), file) {
            (Some(_), Some(_)) => {
                Err(ConfigError(format!("{variable} and {file_variable} are both set; unset one of them")))
            }
            (Some(value), None) => Ok(Some(Given::new(variable, value))),
            (None, Some(path)) => {
                let text = read(Path::new(path)).map_err(|why| ConfigError(format!("{file_variable}: {why}")))?;
                Ok(Some(Given { file: Some(path.to_owned()), ..Given::new(file_variable, &text) }))
            }
            (None, None) => Ok(None),
        }
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// A setting given on the command line.
#[derive(Clone, Debug)]
pub struct Flag {
    /// The flag as given: `--pool-size`.
    pub flag: String,
    /// Key of the setting: `pool_size`.
    pub key: String,
    pub value: String,
}

/// Loads all layers: flags > environment > file > defaults. Reads `file`, or else the file that `HOWDAH_CONFIG` names.
pub fn load(file: Option<PathBuf>, environment: &Environment, flags: Vec<Flag>) -> Result<Settings, ConfigError> {
    let path = file.or_else(|| environment.get("HOWDAH_CONFIG").map(PathBuf::from));
    let file = path.map(|path| file_layer(&path)).transpose()?.unwrap_or_default();
    let mut layers = [flag_layer(flags)?, environment_layer(environment)?, file];
    // Stores are not merged: the highest layer with a database determines all stores.
    let of_stores = layers.iter_mut().find(|layer| layer.names_a_database()).map(Layer::take_stores).transpose()?;
    let of_stores = of_stores.unwrap_or_default();
    let mut settings = Settings::default();
    for setting in ALL.iter().filter(|setting| of_stores.is_empty() || setting.key != "database_url") {
        let found = layers.iter().find_map(|layer| layer.values.get(setting.key));
        found.map_or(Ok(()), |given| given.apply(setting, &mut settings))?;
    }
    if !of_stores.is_empty() {
        let (stores, files) = stores::resolve(of_stores, &settings)?;
        settings.broker.stores = stores;
        settings.broker.url_files.extend(files);
    }
    if let [only] = &settings.broker.stores[..] {
        settings.broker = settings.broker.of_store(only);
    }
    check(&settings.broker)?;
    Ok(settings)
}

/// One layer of the configuration: values of settings by key, and stores.
#[derive(Default)]
struct Layer {
    values: HashMap<&'static str, Given>,
    stores: Vec<StoreText>,
}

impl Layer {
    fn names_a_database(&self) -> bool {
        !self.stores.is_empty() || self.values.contains_key("database_url")
    }

    fn take_stores(&mut self) -> Result<Vec<StoreText>, ConfigError> {
        match self.values.get("database_url") {
            Some(given) if !self.stores.is_empty() => Err(ConfigError(format!(
                "{}: stores are configured too: add this database as a store, or remove the stores",
                given.source
            ))),
            _ => Ok(std::mem::take(&mut self.stores)),
        }
    }
}

/// A value of a setting, and the flag, variable or file that it comes from.
pub(super) struct Given {
    pub(super) source: String,
    pub(super) value: String,
    /// Path of the secret file whose whole content is this value.
    pub(super) file: Option<String>,
}

impl Given {
    pub(super) fn new(source: String, value: &str) -> Self {
        Self { source, value: value.to_owned(), file: None }
    }

    pub(super) fn wrong(&self, problem: &str) -> ConfigError {
        ConfigError(format!("{} is {:?}: {problem}", self.source, self.value))
    }

    pub(super) fn apply(&self, setting: &Setting, settings: &mut Settings) -> Result<(), ConfigError> {
        let Self { source, value, file } = self;
        settings.broker.url_files.extend(file.as_ref().map(|file| UrlFile::new(file, None, value)));
        (setting.set)(settings, value.trim()).map_err(|problem| {
            let value = if setting.is_secret() { String::new() } else { format!(" is {value:?}") };
            ConfigError(format!("{source}{value}: {problem}"))
        })
    }
}

fn flag_layer(flags: Vec<Flag>) -> Result<Layer, ConfigError> {
    let mut layer = Layer::default();
    for Flag { flag, key, value } in flags {
        if key == STORE_FLAG {
            layer.stores.push(StoreText::pair(&flag, &value)?);
            continue;
        }
        let setting = Setting::by_key(&key).ok_or_else(|| unknown(&flag, &key))?;
        layer.values.insert(setting.key, Given::new(flag, &value));
    }
    Ok(layer)
}

fn environment_layer(environment: &Environment) -> Result<Layer, ConfigError> {
    let mut layer = Layer::default();
    for setting in ALL {
        if let Some(given) = environment.value_of(setting.variable(), setting.is_secret())? {
            layer.values.insert(setting.key, given);
        }
    }
    if let Some(Given { source, value, file }) = environment.value_of(STORES_VARIABLE.into(), true)? {
        layer.stores = StoreText::lines(&source, &value, file.as_deref())?;
    }
    // A cluster setting in a broker's configuration has no effect, so it is an error.
    let of_cluster = ClusterSettings::NAMES.map(|name| format!("limits.{name}"));
    match of_cluster.iter().find(|key| environment.get(&variable(key)).is_some()) {
        Some(key) => Err(unknown(&variable(key), key)),
        None => Ok(layer),
    }
}

fn file_layer(path: &Path) -> Result<Layer, ConfigError> {
    let text = read(path).map_err(|why| ConfigError(format!("configuration file {why}")))?;
    let source = format!("configuration file {}", path.display());
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
        // Omits the error's `Display` text, which quotes the line. The line may contain a password.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        ConfigError(format!("{source}: line {line}: {}", error.message().replace('\n', ", ")))
    })?;
    let mut layer = Layer::default();
    if let Some(stores) = table.remove(STORES_KEY) {
        layer.stores = StoreText::tables(&source, stores)?;
    }
    flatten(&source, "", table, &mut layer)?;
    Ok(layer)
}

/// Flattens tables: `{limits: {connections: 3}}` becomes `limits.connections = 3`. An unknown key is an error.
fn flatten(source: &str, prefix: &str, table: Table, layer: &mut Layer) -> Result<(), ConfigError> {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        let tables = || ALL.iter().filter_map(|setting| setting.key.rsplit_once('.'));
        let setting = Setting::by_key(&key);
        match (value, setting) {
            (Value::Table(inner), None) if tables().any(|(table, _)| table == key) => {
                flatten(source, &format!("{key}."), inner, layer)?;
            }
            (_, None) if tables().any(|(table, _)| table == key) => {
                return Err(ConfigError(format!("{source}: {key} is a table: write [{key}]")));
            }
            (_, None) => return Err(unknown(source, &key)),
            (Value::Table(_) | Value::Array(_), Some(_)) => {
                return Err(ConfigError(format!("{source}: {key} must be a single value")));
            }
            (value, Some(setting)) => {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                layer.values.insert(setting.key, Given::new(format!("{source}: {key}"), &value));
            }
        }
    }
    Ok(())
}

fn unknown(source: &str, key: &str) -> ConfigError {
    if let Some(name) = key.strip_prefix("limits.").filter(|name| ClusterSettings::NAMES.contains(name)) {
        return ConfigError(format!(
            "{source}: {key} is a setting of the cluster now, not of a broker; set it with `howdah settings set {name}=...`"
        ));
    }
    let nearest = nearest(key, ALL.iter().map(|setting| setting.key));
    let hint = nearest.map_or("; `howdah config` lists every key".to_owned(), |near| format!("; did you mean {near}?"));
    ConfigError(format!("{source}: unknown key {key:?}{hint}"))
}

/// Returns the known key that is most similar, if it is similar enough for a suggestion.
pub(super) fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, nearest) = known.map(|known| (distance(key, known), known)).min()?;
    (distance <= 3.min(key.len() / 3)).then_some(nearest)
}

/// Returns the edit distance (Levenshtein) of two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().take(100).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, right) in b.iter().enumerate() {
            let best = (diagonal + usize::from(left != *right)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

/// Reads a small file. The error names the file.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let length = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
    if length > MAX_FILE_BYTES {
        return Err(failed(&format_args!("has {length} bytes; at most {MAX_FILE_BYTES} are read")));
    }
    std::fs::read_to_string(path).map_err(|error| failed(&error))
}
