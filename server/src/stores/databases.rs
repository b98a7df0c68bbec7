//! Stores whose name is a pattern: each database of a server whose name matches is a store.

use std::collections::HashSet;

use howdah_core::config::{Config, MOST_STORES, StoreConfig};
use howdah_engine::store::{Store, StoreError};

use super::StoresError;

/// The stores that a configuration stands for.
pub(super) struct Expanded {
    pub(super) stores: Vec<StoreConfig>,
    /// Patterns whose server could not be asked for its databases, each with the error.
    pub(super) unreachable: Vec<(StoreConfig, StoreError)>,
}

/// Replaces each pattern by the databases that match it. A database that is configured by its name keeps its own settings. Adds
/// the files of the connection strings to the configuration.
pub(super) async fn expand(config: &mut Config) -> Result<Expanded, StoresError> {
    let configured = config.each_store();
    let mut names: HashSet<String> = configured.iter().map(|store| store.name.clone()).collect();
    let mut expanded = Expanded { stores: Vec::new(), unreachable: Vec::new() };
    for one in configured {
        if one.pattern().is_none() {
            expanded.stores.push(one);
            continue;
        }
        let store = Store::new(&config.of_store(&one)).map_err(StoresError::Config)?;
        let databases = match store.databases().await {
            Ok(databases) => databases,
            Err(error) => {
                expanded.unreachable.push((one, error));
                continue;
            }
        };
        for found in databases.iter().filter_map(|database| one.of_database(database)) {
            if names.insert(found.name.clone()) {
                config.add_url_files(&one, &found.name);
                expanded.stores.push(found);
            }
        }
    }
    match expanded.stores.len() {
        count if count > MOST_STORES => {
            let problem = format!("the patterns match {count} stores in all; a broker serves at most {MOST_STORES}");
            Err(StoresError::Config(problem))
        }
        _ => Ok(expanded),
    }
}
