//! What `howdah doctor` asks a database.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Statement, Store, StoreError};

/// A database, its settings and its statistics.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Facts {
    /// Settings that a session of this role begins with, in Postgres's base units.
    pub settings: BTreeMap<String, String>,
    /// The database's clock, in µs after 1970.
    pub now_us: i64,
    /// Sessions of the whole server.
    pub connections: i64,
    /// The age of the oldest transaction that is not frozen.
    pub xid_age: i64,
    /// Whether the role may see the sessions of others.
    pub reads_all_stats: bool,
    /// Whether the role owns the tables.
    pub owns: bool,
    /// Brokers that live.
    pub brokers: i64,
    /// The releases that made the parts of the schema.
    pub releases: Vec<String>,
    /// Whether rows have gone to a default partition.
    pub default_rows: bool,
    /// The tables of unfinished jobs.
    pub tables: Vec<TableFacts>,
    /// Indexes that Postgres does not use.
    pub invalid_indexes: Vec<String>,
    /// Replication slots that nobody reads.
    pub idle_slots: Vec<String>,
}

/// A table of unfinished jobs.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TableFacts {
    /// Its name.
    pub name: String,
    /// Live rows, as Postgres estimates.
    pub live_rows: i64,
    /// Its size with indexes, as of the last VACUUM or ANALYZE.
    pub bytes: i64,
    /// Whether autovacuum is on for it.
    pub autovacuum: bool,
    /// Whether it has statistics for the planner.
    pub analyzed: bool,
}

impl Store {
    /// Reads the facts.
    pub async fn examine(&self) -> Result<Facts, StoreError> {
        let row = self.general().await?.query_one(Statement::Examine, &[]).await?;
        serde_json::from_str(row.get("facts"))
            .map_err(|error| StoreError::Refused(format!("the facts of the database cannot be read: {error}").into()))
    }
}
