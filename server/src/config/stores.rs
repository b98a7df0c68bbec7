//! Several stores: `--store NAME=URL`, `HOWDAH_STORES`, or `[[stores]]` in the file. What a store does not say of itself, it
//! takes from the rest of the configuration.

use std::{collections::HashSet, path::Path, time::Duration};

use toml::{Table, Value};

use super::{
    Config, WakeMode,
    load::{ConfigError, Given, nearest, read},
    setting::{Setting, Settings},
    url,
    words::store_name,
};
use crate::job::StoreNumber;

/// The most stores of a broker: each has connections and tasks of its own.
pub const MOST_STORES: usize = 64;
/// The name of the only store, if it was given without one.
pub const DEFAULT_STORE: &str = "default";

/// The settings that a store may have for itself, by their keys.
const OWN: [&str; 7] =
    ["database_url", "listen_database_url", "read_database_url", "schema", "pool_size", "wake", "poll_interval"];
/// The other keys of a store.
const NAME: &str = "name";
const NUMBER: &str = "number";
const URL_FILE: &str = "database_url_file";
const NEW_TYPES: &str = "new_types";
const OTHER: [&str; 4] = [NAME, NUMBER, URL_FILE, NEW_TYPES];

/// One store: a database, and a schema in it.
#[derive(Clone)]
pub struct StoreConfig {
    /// Its name: for people, in requests, metrics and logs.
    pub name: String,
    /// Its number, if the configuration says it; otherwise the database does.
    pub number: Option<StoreNumber>,
    /// Its connection string.
    pub database_url: String,
    /// The connection string for LISTEN, if `database_url` goes through a pooler.
    pub listen_database_url: Option<String>,
    /// The connection string of a replica for those who only read.
    pub read_database_url: Option<String>,
    /// The schema that holds its tables.
    pub schema: String,
    /// Most connections for its hot statements.
    pub pool_size: u32,
    /// How a broker learns of its new jobs.
    pub wake: WakeMode,
    /// Time between two polls.
    pub poll_interval: Duration,
    /// Whether a new task type may get its home here by its name.
    pub new_types: bool,
}

impl Config {
    /// The stores: those that are configured by name, or the one that `database_url` is.
    pub fn each_store(&self) -> Vec<StoreConfig> {
        if self.stores.is_empty() {
            vec![StoreConfig::of(self, DEFAULT_STORE.into(), None)]
        } else {
            self.stores.clone()
        }
    }

    /// The same configuration with this store alone.
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
    /// The store that `database_url` is, under a name of its own.
    pub fn of(config: &Config, name: String, number: Option<StoreNumber>) -> Self {
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
        }
    }

    /// Its URL without the password, and its schema if that is another than usual.
    pub fn place(&self) -> String {
        let url = url::redacted(&self.database_url);
        if self.schema == Config::new("").schema { url } else { format!("{url} schema {}", self.schema) }
    }
}

/// What a source says of a store: values by their keys.
pub(super) struct StoreText(Vec<(String, Given)>);

impl StoreText {
    /// `NAME=URL`. Errors do not repeat it: it may have a password.
    pub(super) fn pair(place: &str, text: &str) -> Result<Self, ConfigError> {
        let parts = text.split_once('=').map(|(name, url)| (name.trim(), url.trim()));
        let parts = parts.filter(|(name, _)| store_name(name).is_ok());
        let (name, url) = parts.ok_or_else(|| {
            ConfigError::new(format!(
                "{place}: must be NAME=URL, such as billing=postgres://db.internal/app; a name is 1 to 63 of a-z 0-9 - _ \
                 and begins with a letter"
            ))
        })?;
        let given = |key: &str, value: &str| (key.to_owned(), Given::new(format!("{place} {name}"), value));
        Ok(Self(vec![given(NAME, name), given("database_url", url)]))
    }

    /// One `NAME=URL` a line.
    pub(super) fn lines(place: &str, text: &str) -> Result<Vec<Self>, ConfigError> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(|line| Self::pair(place, line)).collect()
    }

    /// `[[stores]]` of a file.
    pub(super) fn tables(place: &str, value: Value) -> Result<Vec<Self>, ConfigError> {
        let wrong = || ConfigError::new(format!("{place}: stores is a list of tables: write [[stores]]"));
        let Value::Array(tables) = value else { return Err(wrong()) };
        let each = tables.into_iter().enumerate().map(|(i, table)| match table {
            Value::Table(table) => Self::table(&format!("{place}: stores[{i}]"), table),
            _ => Err(wrong()),
        });
        each.collect()
    }

    fn table(place: &str, table: Table) -> Result<Self, ConfigError> {
        let each = table.into_iter().map(|(key, value)| match value {
            Value::Table(_) | Value::Array(_) => Err(ConfigError::new(format!("{place}.{key} must be a single value"))),
            value => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let given = Given::new(format!("{place}.{key}"), &text);
                Ok((key, given))
            }
        });
        Ok(Self(each.collect::<Result<_, _>>()?))
    }

    fn get(&self, key: &str) -> Option<&Given> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, given)| given)
    }

    /// The store, with the settings of the broker for what it does not say.
    fn resolve(self, nth: usize, settings: &Settings) -> Result<StoreConfig, ConfigError> {
        let name = self.get(NAME).ok_or_else(|| ConfigError::new(format!("stores[{nth}]: name is missing")))?;
        store_name(&name.value).map_err(|problem| name.wrong(&problem))?;
        let name = name.value.clone();
        let number = self.get(NUMBER).map(number).transpose()?;
        let new_types = self.get(NEW_TYPES).map(yes_or_no).transpose()?.unwrap_or(true);
        let mut own = settings.clone();
        own.broker.database_url = String::new();
        (own.broker.listen_database_url, own.broker.read_database_url) = (None, None);
        for (key, given) in &self.0 {
            let known = OWN.iter().find(|own| *own == key).and_then(|key| Setting::of(key));
            match known {
                Some(setting) => given.apply(setting, &mut own)?,
                None if OTHER.contains(&key.as_str()) => {}
                None => {
                    let keys = OWN.into_iter().chain(OTHER);
                    let hint = nearest(key, keys).map(|known| format!("; did you mean {known}?")).unwrap_or_default();
                    return Err(ConfigError::new(format!("{}: a store has no such key{hint}", given.place)));
                }
            }
        }
        if let Some(file) = self.get(URL_FILE) {
            if !own.broker.database_url.is_empty() {
                return Err(ConfigError::new(format!("{}: database_url is set too; give one of them", file.place)));
            }
            let text =
                read(Path::new(&file.value)).map_err(|why| ConfigError::new(format!("{}: {why}", file.place)))?;
            let given = Given::new(file.place.clone(), &text);
            Setting::of("database_url").map_or(Ok(()), |setting| given.apply(setting, &mut own))?;
        }
        if own.broker.database_url.is_empty() {
            return Err(ConfigError::new(format!("store {name}: database_url is missing")));
        }
        Ok(StoreConfig { new_types, ..StoreConfig::of(&own.broker, name, number) })
    }
}

fn number(given: &Given) -> Result<StoreNumber, ConfigError> {
    let number = given.value.parse().ok().and_then(StoreNumber::new);
    number.ok_or_else(|| given.wrong(&format!("must be a whole number from 0 to {}", StoreNumber::MOST)))
}

fn yes_or_no(given: &Given) -> Result<bool, ConfigError> {
    given.value.trim().parse().map_err(|_| given.wrong("must be true or false"))
}

/// The stores of a source, each one complete, and no two of them alike.
pub(super) fn resolve(texts: Vec<StoreText>, settings: &Settings) -> Result<Vec<StoreConfig>, ConfigError> {
    if texts.len() > MOST_STORES {
        let count = texts.len();
        return Err(ConfigError::new(format!("{count} stores are given; a broker serves at most {MOST_STORES}")));
    }
    let one = [
        ("listen_database_url", settings.broker.listen_database_url.is_some()),
        ("read_database_url", settings.broker.read_database_url.is_some()),
    ];
    if let Some((key, _)) = one.into_iter().find(|(_, is_set)| *is_set) {
        return Err(ConfigError::new(format!("{key} is of one database: set it in the [[stores]] that it belongs to")));
    }
    let stores: Vec<StoreConfig> =
        texts.into_iter().enumerate().map(|(i, text)| text.resolve(i, settings)).collect::<Result<_, _>>()?;
    let (mut names, mut numbers, mut places) = (HashSet::new(), HashSet::new(), HashSet::new());
    for store in &stores {
        let name = &store.name;
        if !names.insert(name) {
            return Err(ConfigError::new(format!("two stores have the name {name}")));
        }
        if let Some(number) = store.number.filter(|number| !numbers.insert(*number)) {
            return Err(ConfigError::new(format!("store {name}: another store has the number {number}, too")));
        }
        if !places.insert((&store.database_url, &store.schema)) {
            return Err(ConfigError::new(format!("store {name}: another store has the same database_url and schema")));
        }
    }
    if !stores.is_empty() && stores.iter().all(|store| !store.new_types) {
        return Err(ConfigError::new(
            "no store takes new task types, so they would have no home: leave out new_types = false in one of the [[stores]]",
        ));
    }
    Ok(stores)
}
