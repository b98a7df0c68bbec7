//! Queries from which `howdah doctor` finds problems of a database.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};

use super::{Statement, Store, StoreError};

/// Settings and statistics of a server and a database.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Facts {
    /// Postgres settings with which a session of this role starts, by name. Values are in the base unit of each
    /// setting.
    pub settings: BTreeMap<String, String>,
    /// Statements that remove the values of the database or of the role, by setting.
    #[serde(default)]
    pub resets: BTreeMap<String, String>,
    /// Database time in µs since 1970.
    pub now_us: i64,
    /// Age of the oldest unfrozen transaction id, in transactions.
    pub xid_age: i64,
    /// Whether the role may see the sessions of other roles.
    pub reads_all_stats: bool,
    /// Whether the schema exists.
    pub has_schema: bool,
    /// Versions of the database's collation: recorded at the creation of the database, and current. `None` if both are
    /// equal.
    pub collation: Option<(String, String)>,
    /// Number of history and payload partitions plus their indexes. A statement over all partitions needs this many
    /// locks.
    pub history_locks: i64,
    /// Names of replication slots without a connected reader.
    pub idle_slots: Vec<String>,
}

/// Facts about the schema.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SchemaFacts {
    /// Whether the role owns the tables.
    pub owns: bool,
    /// Number of brokers whose lease has not expired.
    pub brokers: i64,
    /// Releases that installed the tables, functions and view of the schema.
    pub releases: Vec<String>,
    /// Whether a default partition has rows.
    pub default_rows: bool,
    /// Tables of unfinished jobs.
    pub tables: Vec<TableFacts>,
    /// Indexes that are marked invalid, so that Postgres does not use them.
    pub invalid_indexes: Vec<String>,
    /// Time since the schema was created, in seconds.
    pub made_s: i64,
    /// Uptime in seconds of the broker that has been running longest.
    pub serving_s: Option<i64>,
    /// Indexes whose order depends on the collation of the database.
    pub collated_indexes: Vec<String>,
    /// Idle transactions that hold locks on tables of the schema.
    pub lock_holders: Vec<LockHolder>,
    /// Tables without a replica identity: logical replication cannot identify their rows.
    pub unidentified: Vec<UnidentifiedTable>,
    /// Facts that only the owner may read. Empty for other roles.
    #[serde(skip)]
    pub owned: OwnedFacts,
}

/// Facts about the schema that only its owner may read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct OwnedFacts {
    /// Sequences whose next value is an id that a stored row already has.
    pub stuck_sequences: Vec<String>,
    /// Indexes, constraints and triggers of the schema that no longer exist.
    #[serde(default)]
    pub missing: Vec<MissingObject>,
    /// Triggers and rules that Howdah has not created, such as `trigger audit of ready`.
    #[serde(default)]
    pub foreign_triggers: Vec<String>,
    /// Rights and owners that differ from the intended ones, sorted by role.
    pub rights: Vec<WrongRight>,
}

/// An index, constraint or trigger that the tables had when they were created.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct MissingObject {
    /// Kind, name and table, such as `index ready_by_id of ready`.
    pub name: String,
    /// SQL statement that creates the object.
    pub statement: String,
}

/// A transaction that has been idle for a few seconds and holds locks on tables of the schema, so it may lock rows of them.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct LockHolder {
    /// Process id of the session.
    pub pid: i32,
    /// Role of the session.
    pub user: String,
    /// Application name of the session.
    pub application: String,
    /// Seconds since the last statement of the transaction.
    pub idle_s: i64,
    /// Names of the tables, without partitions.
    pub tables: Vec<String>,
}

/// A table without a replica identity: logical replication cannot identify its rows.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct UnidentifiedTable {
    /// Name of the table, with its schema.
    pub name: String,
    /// Whether a publication includes the table with updates or deletes, which then fail.
    pub published: bool,
}

/// A right that a role has and should not have, or lacks and should have. The privilege `OWNER` stands for an object
/// whose owner is not the owner of the tables.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct WrongRight {
    /// Role name, or PUBLIC.
    pub role: String,
    /// Name of the function, table or sequence.
    pub called: String,
    /// Privilege that the role has or lacks.
    pub privilege: String,
    /// On the schema itself: always true. On other objects: whether the role is neither PUBLIC nor one of Howdah's three
    /// roles.
    pub is_foreign: bool,
    /// Whether one of Howdah's roles is intended to have this right. If so, an operator may have granted it to another
    /// role on purpose.
    pub is_meant: bool,
    /// SQL statement that corrects the right.
    pub statement: String,
}

/// A table of unfinished jobs.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TableFacts {
    pub name: String,
    /// Number of live rows, estimated by Postgres.
    pub live_rows: i64,
    /// Size with indexes in bytes, at the last VACUUM or ANALYZE.
    pub bytes: i64,
    /// Whether autovacuum is enabled for the table.
    pub autovacuum: bool,
    /// Whether the planner has statistics for the table.
    pub analyzed: bool,
}

impl Store {
    /// Reads the facts about the server and the database.
    pub async fn examine(&self) -> Result<Facts, StoreError> {
        self.facts_of(Statement::Examine).await
    }

    /// Reads the facts about the schema. Fails if the schema does not exist.
    pub async fn examine_schema(&self) -> Result<SchemaFacts, StoreError> {
        let facts: SchemaFacts = self.facts_of(Statement::ExamineSchema).await?;
        let owned = if facts.owns { self.facts_of(Statement::ExamineOwned).await? } else { OwnedFacts::default() };
        Ok(SchemaFacts { owned, ..facts })
    }

    async fn facts_of<T: DeserializeOwned>(&self, statement: Statement) -> Result<T, StoreError> {
        let row = self.general().await?.query_one(statement, &[]).await?;
        serde_json::from_str(row.get("facts")).map_err(|error| {
            StoreError::Refused(format!("bug: the facts for howdah doctor are not the expected JSON: {error}").into())
        })
    }
}
