//! Configuration of several stores: `--store NAME=URL`, `HOWDAH_STORES`, or `[[stores]]` in the configuration file. If
//! a store lacks a setting, the broker's setting applies.

use std::{collections::HashSet, path::Path, time::Duration};

use toml::{Table, Value};

use super::{
    Config, WakeMode,
    formats::{store_name, store_name_or_pattern},
    load::{ConfigError, Given, nearest, read},
    setting::{Setting, Settings},
    url::{self, UrlFile},
};
use crate::job::StoreNumber;

/// Maximum number of stores of a broker. Each store needs separate connections and tasks.
pub const MOST_STORES: usize = 64;
/// Name of the only store, if the configuration has no store names.
pub const DEFAULT_STORE: &str = "default";

/// Keys of broker settings that a `[[stores]]` table may override.
const STORE_SETTINGS: [&str; 7] =
    ["database_url", "listen_database_url", "read_database_url", "schema", "pool_size", "wake", "poll_interval"];
// Keys of a `[[stores]]` table that are not broker settings.
const NAME: &str = "name";
const NUMBER: &str = "number";
const URL_FILE: &str = "database_url_file";
const NEW_TYPES: &str = "new_types";
const OTHER: [&str; 4] = [NAME, NUMBER, URL_FILE, NEW_TYPES];

/// Configuration of one store: a database and a schema. If the name is a pattern, such as `app_*`, each database of the server
/// whose name matches is a store.
#[derive(Clone, PartialEq)]
pub struct StoreConfig {
    /// Name of the store in requests, metrics and logs, or a pattern for names of databases.
    pub name: String,
    /// Store number, if configured. Otherwise the broker uses the number in the database.
    pub number: Option<StoreNumber>,
    /// Connection string of Postgres.
    pub database_url: String,
    /// Connection string for LISTEN, if `database_url` connects through a pooler.
    pub listen_database_url: Option<String>,
    /// Connection string of a read replica for lists, searches and statistics.
    pub read_database_url: Option<String>,
    /// Schema that holds the tables.
    pub schema: String,
    /// Maximum number of connections to Postgres for enqueueing, claiming and settling jobs.
    pub pool_size: u32,
    /// How the broker learns that jobs are ready.
    pub wake: WakeMode,
    /// Poll interval.
    pub poll_interval: Duration,
    /// Whether new task types may be assigned to this store. A hash of the name selects one of the stores.
    pub new_types: bool,
    /// Whether the store is a database that matches a pattern. If the broker cannot serve it, it is skipped.
    pub is_matched: bool,
}

impl Config {
    /// Returns the configured stores, or the single store of `database_url`.
    pub fn each_store(&self) -> Vec<StoreConfig> {
        if self.stores.is_empty() {
            vec![StoreConfig::new(self, DEFAULT_STORE.into(), None)]
        } else {
            self.stores.clone()
        }
    }

    /// Returns the broker's configuration with the settings of this store.
    #[must_use]
    pub fn of_store(&self, store: &StoreConfig) -> Self {
        Self {
            database_url: store.database_url.clone(),
            listen_database_url: store.listen_database_url.clone(),
            read_database_url: store.read_database_url.clone(),
            schema: store.schema.clone(),
            pool_size: store.pool_size,
            wake: store.wake,
            poll_interval: store.poll_interval,
            stores: vec![store.clone()],
            ..self.clone()
        }
    }
}

impl StoreConfig {
    /// Creates the configuration of a store from the broker's `database_url` and related settings.
    pub fn new(config: &Config, name: String, number: Option<StoreNumber>) -> Self {
        Self {
            name,
            number,
            database_url: config.database_url.clone(),
            listen_database_url: config.listen_database_url.clone(),
            read_database_url: config.read_database_url.clone(),
            schema: config.schema.clone(),
            pool_size: config.pool_size,
            wake: config.wake,
            poll_interval: config.poll_interval,
            new_types: true,
            is_matched: false,
        }
    }

    /// Returns the fixed parts before and after the `*` of a pattern; `None` if the name is no pattern.
    pub fn pattern(&self) -> Option<(&str, &str)> {
        self.name.split_once('*')
    }

    /// For a `StoreConfig` with a pattern, returns the store for one database. `None` if the database's name does not match the
    /// pattern, or is not valid as the name of a store.
    pub fn of_database(&self, database: &str) -> Option<Self> {
        let (before, after) = self.pattern()?;
        let rest = database.strip_prefix(before)?;
        if !rest.ends_with(after) || store_name(database).is_err() {
            return None;
        }
        let with_database = |url: &String| url::with_database(url, database);
        Some(Self {
            name: database.to_owned(),
            is_matched: true,
            database_url: with_database(&self.database_url),
            listen_database_url: self.listen_database_url.as_ref().map(with_database),
            read_database_url: self.read_database_url.as_ref().map(with_database),
            ..self.clone()
        })
    }

    /// Describes the store's location: the URL without the password, and the schema if it is not the default.
    pub fn location(&self) -> String {
        let url = url::redacted(&self.database_url);
        if self.schema == Config::new("").schema { url } else { format!("{url} schema {}", self.schema) }
    }
}

/// A store as one source configures it: unparsed values by key.
pub(super) struct StoreText {
    values: Vec<(String, Given)>,
    /// File that contains the store's line `NAME=URL`, and the connection string of that line.
    file: Option<(String, String)>,
}

impl StoreText {
    /// Parses `NAME=URL`. Errors do not repeat the text, because it may contain a password.
    pub(super) fn pair(source: &str, text: &str) -> Result<Self, ConfigError> {
        let parts = text.split_once('=').map(|(name, url)| (name.trim(), url.trim()));
        let parts = parts.filter(|(name, _)| store_name_or_pattern(name).is_ok());
        let (name, url) = parts.ok_or_else(|| {
            ConfigError::new(format!(
                "{source}: must be NAME=URL, such as billing=postgres://db.internal/app; a name has 1 to 63 characters of \
                 a-z 0-9 - _ and begins with a letter"
            ))
        })?;
        let given = |key: &str, value: &str| (key.to_owned(), Given::new(format!("{source} {name}"), value));
        Ok(Self { values: vec![given(NAME, name), given("database_url", url)], file: None })
    }

    /// Parses lines with one `NAME=URL` each.
    pub(super) fn lines(source: &str, text: &str, file: Option<&str>) -> Result<Vec<Self>, ConfigError> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let of_file = |line: &str| {
            let store = Self::pair(source, line)?;
            let url = store.get("database_url").map(|given| given.value.clone()).unwrap_or_default();
            Ok(Self { file: file.map(|file| (file.to_owned(), url)), ..store })
        };
        lines.map(of_file).collect()
    }

    /// Parses the tables `[[stores]]` of a configuration file.
    pub(super) fn tables(source: &str, value: Value) -> Result<Vec<Self>, ConfigError> {
        let wrong = || ConfigError::new(format!("{source}: stores is a list of tables: write [[stores]]"));
        let Value::Array(tables) = value else { return Err(wrong()) };
        let each = tables.into_iter().enumerate().map(|(i, table)| match table {
            Value::Table(table) => Self::table(&format!("{source}: stores[{i}]"), table),
            _ => Err(wrong()),
        });
        each.collect()
    }

    fn table(source: &str, table: Table) -> Result<Self, ConfigError> {
        let each = table.into_iter().map(|(key, value)| match value {
            Value::Table(_) | Value::Array(_) => {
                Err(ConfigError::new(format!("{source}.{key} must be a single value")))
            }
            value => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let given = Given::new(format!("{source}.{key}"), &text);
                Ok((key, given))
            }
        });
        Ok(Self { values: each.collect::<Result<_, _>>()?, file: None })
    }

    fn get(&self, key: &str) -> Option<&Given> {
        self.values.iter().find(|(known, _)| known == key).map(|(_, given)| given)
    }

    /// Builds the store's configuration. If the store lacks a setting, the broker's setting applies.
    fn resolve(self, nth: usize, settings: &Settings) -> Result<(StoreConfig, Vec<UrlFile>), ConfigError> {
        let name = self.get(NAME).ok_or_else(|| ConfigError::new(format!("stores[{nth}]: name is missing")))?;
        store_name_or_pattern(&name.value).map_err(|problem| name.wrong(&problem))?;
        if nth == 0 && name.value.contains('*') {
            return Err(name.wrong("the first store is the primary store, which must be one database"));
        }
        let name = name.value.clone();
        if let Some(number) = self.get(NUMBER).filter(|_| name.contains('*')) {
            return Err(number.wrong("a pattern stands for several stores; leave number out"));
        }
        let number = self.get(NUMBER).map(number).transpose()?;
        let new_types = self.get(NEW_TYPES).map(yes_or_no).transpose()?.unwrap_or(true);
        let mut store_settings = settings.clone();
        store_settings.broker.database_url = String::new();
        (store_settings.broker.listen_database_url, store_settings.broker.read_database_url) = (None, None);
        for (key, given) in &self.values {
            let known = STORE_SETTINGS.iter().find(|setting| *setting == key).and_then(|key| Setting::by_key(key));
            match known {
                Some(setting) => given.apply(setting, &mut store_settings)?,
                None if OTHER.contains(&key.as_str()) => {}
                None => {
                    let keys = STORE_SETTINGS.into_iter().chain(OTHER);
                    let hint = nearest(key, keys).map(|known| format!("; did you mean {known}?")).unwrap_or_default();
                    return Err(ConfigError::new(format!("{}: a store has no such key{hint}", given.source)));
                }
            }
        }
        if let Some(file) = self.get(URL_FILE) {
            if !store_settings.broker.database_url.is_empty() {
                return Err(ConfigError::new(format!("{}: database_url is set too; give one of them", file.source)));
            }
            let text =
                read(Path::new(&file.value)).map_err(|why| ConfigError::new(format!("{}: {why}", file.source)))?;
            let given = Given { file: Some(file.value.clone()), ..Given::new(file.source.clone(), &text) };
            Setting::by_key("database_url").map_or(Ok(()), |setting| given.apply(setting, &mut store_settings))?;
        }
        if store_settings.broker.database_url.is_empty() {
            return Err(ConfigError::new(format!("store {name}: database_url is missing")));
        }
        let mut files = store_settings.broker.url_files.split_off(settings.broker.url_files.len());
        files.extend(self.file.map(|(file, url)| UrlFile::new(&file, Some(&name), &url)));
        Ok((StoreConfig { new_types, ..StoreConfig::new(&store_settings.broker, name, number) }, files))
    }
}

fn number(given: &Given) -> Result<StoreNumber, ConfigError> {
    let number = given.value.parse().ok().and_then(StoreNumber::new);
    number.ok_or_else(|| given.wrong(&format!("must be a whole number from 0 to {}", StoreNumber::MOST)))
}

fn yes_or_no(given: &Given) -> Result<bool, ConfigError> {
    given.value.trim().parse().map_err(|_| given.wrong("must be true or false"))
}

/// Builds the configurations of all stores of a source. Names, numbers, and pairs of URL and schema must be unique.
pub(super) fn resolve(
    texts: Vec<StoreText>,
    settings: &Settings,
) -> Result<(Vec<StoreConfig>, Vec<UrlFile>), ConfigError> {
    if texts.len() > MOST_STORES {
        let count = texts.len();
        return Err(ConfigError::new(format!("{count} stores are given; a broker serves at most {MOST_STORES}")));
    }
    let one = [
        ("listen_database_url", settings.broker.listen_database_url.is_some()),
        ("read_database_url", settings.broker.read_database_url.is_some()),
    ];
    if let Some((key, _)) = one.into_iter().find(|(_, is_set)| *is_set) {
        return Err(ConfigError::new(format!("{key} applies to one database: set it in the store's table [[stores]]")));
    }
    let resolved = texts.into_iter().enumerate().map(|(i, text)| text.resolve(i, settings));
    let (stores, files): (Vec<_>, Vec<_>) = resolved.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let (mut names, mut numbers, mut locations) = (HashSet::new(), HashSet::new(), HashSet::new());
    for store in &stores {
        let name = &store.name;
        if !names.insert(name) {
            return Err(ConfigError::new(format!("two stores have the name {name}")));
        }
        if let Some(number) = store.number.filter(|number| !numbers.insert(*number)) {
            return Err(ConfigError::new(format!("store {name}: another store has the number {number}, too")));
        }
        if store.pattern().is_none() && !locations.insert((&store.database_url, &store.schema)) {
            return Err(ConfigError::new(format!("store {name}: another store has the same database_url and schema")));
        }
    }
    if !stores.is_empty() && stores.iter().all(|store| !store.new_types) {
        return Err(ConfigError::new(
            "no store accepts new task types: remove new_types = false from one of the [[stores]]",
        ));
    }
    Ok((stores, files.concat()))
}
