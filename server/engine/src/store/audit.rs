//! The audit log: changes by people and programs. A row is written in the transaction of its change.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_core::job::TypeId;

use super::{
    Connection, Statement, Store, StoreError,
    connection::Params,
    rows::{self, from_row},
};

/// Maximum number of record ids, and of task types, in an audit row. The row of a larger change has the first ones and
/// the total number of records.
const FIRST: usize = 10;

/// The author of a change, the call that makes it, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Principal of the caller. Empty if authentication is off. `None`: the audit row gets the role of the Postgres
    /// session.
    pub principal: Option<Arc<str>>,
    /// Name of the broker. `None` for a program that changes the database without a broker.
    pub broker: Option<String>,
    /// Network address of the caller. `None`: the audit row gets the client address of the Postgres session.
    pub peer: Option<String>,
    /// Name of the RPC or of the command that makes the change.
    pub method: &'static str,
    /// Reason given by the caller. Empty if it gave none.
    pub reason: String,
}

impl Actor {
    /// Returns the principal. Empty if authentication is off, or if the actor is a Postgres role.
    pub(crate) fn name(&self) -> &str {
        self.principal.as_deref().unwrap_or_default()
    }
}

/// The records that a change affects, for the audit row.
#[derive(Clone, Debug, Default)]
pub(super) struct Change<'a> {
    /// Ids of the affected task types.
    pub(super) type_ids: Vec<TypeId>,
    /// Names of further affected task types.
    pub(super) types: Vec<&'a str>,
    /// Number of changed records.
    pub(super) count: i64,
    /// Ids of the first changed records.
    pub(super) ids: Vec<String>,
    /// Settings before the change, if it changes settings.
    pub(super) before: Option<SettingsBefore>,
}

/// Settings of the cluster, of a task type, of a limit key or of a schedule before a change.
#[derive(Clone, Debug)]
pub(super) struct SettingsBefore {
    kind: &'static str,
    name: String,
    /// The settings as JSON. `None` if they do not exist.
    values: Option<String>,
}

impl SettingsBefore {
    pub(super) const CLUSTER: &'static str = "cluster";
    pub(super) const TASK_TYPE: &'static str = "task_type";
    pub(super) const SCHEDULE: &'static str = "schedule";
    /// Kind of a limit key's settings. Their `name` is the task type, a space and the limit key.
    pub(super) const LIMIT_KEY: &'static str = "limit_key";

    /// Reads the settings in the transaction that will change them.
    pub(super) async fn read(connection: &mut Connection, kind: &'static str, name: &str) -> Result<Self, StoreError> {
        let values = connection.one(Statement::AuditedSettings, &[&kind, &name]).await?;
        Ok(Self { kind, name: name.to_owned(), values })
    }
}

/// A row of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Id of the audit row.
    pub id: i64,
    /// Time of the change, in µs since 1970.
    pub time_us: i64,
    /// Principal of the caller. Empty if authentication was off.
    pub principal: String,
    /// Name of the broker. `None` for an SQL function.
    pub broker: Option<String>,
    /// Network address of the caller.
    pub peer: String,
    /// Name of the RPC, command or SQL function that made the change.
    pub method: String,
    /// Names of the affected task types, at most 10.
    pub types: Vec<String>,
    /// Number of changed records.
    pub count: i64,
    /// Ids of the first changed records.
    pub ids: Vec<String>,
    /// Reason given by the caller.
    pub reason: String,
    /// Changed settings with their old and new values.
    pub changes: Vec<String>,
}

from_row! {
    AuditEntry(row) {
        id, time_us: row.get("time"), principal, broker, peer, method, types, count, ids, reason, changes,
    }
}

/// Filter and position of a page of the audit log, newest rows first. `None` matches every row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Earliest time, in µs since 1970.
    pub since_us: Option<i64>,
    /// Latest time (exclusive), in µs since 1970.
    pub until_us: Option<i64>,
    /// Time and id of the last row of the previous page.
    pub after: Option<(i64, i64)>,
    /// Only changes by this principal.
    pub principal: Option<String>,
    /// Only changes by the RPC, command or SQL function with this name.
    pub method: Option<String>,
    /// Only changes whose row has this id among its stored ids.
    pub id: Option<String>,
    /// Only changes whose row has this task type among its stored types.
    pub task_type: Option<String>,
    /// Maximum number of rows.
    pub at_most: i32,
}

impl Actor {
    /// Creates the actor for a program that changes the database without a broker. The audit row then names the role of
    /// the Postgres session.
    pub fn of_session(method: &'static str) -> Self {
        Self { principal: None, broker: None, peer: None, method, reason: String::new() }
    }
}

impl<'a> Change<'a> {
    /// Describes a change of jobs, given by id and task type.
    pub(super) fn of_jobs(jobs: impl IntoIterator<Item = (i64, TypeId)>) -> Self {
        let mut change = Self::default();
        for (id, type_id) in jobs {
            change.count += 1;
            if change.ids.len() < FIRST {
                change.ids.push(id.to_string());
            }
            if !change.type_ids.contains(&type_id) && change.type_ids.len() < FIRST {
                change.type_ids.push(type_id);
            }
        }
        change
    }

    /// Describes a change of one named record of a task type.
    pub(super) fn of_name(name: &str, task_type: &'a str) -> Self {
        Self { types: vec![task_type], count: 1, ids: vec![name.to_owned()], ..Self::default() }
    }

    /// Describes a change of records without a task type.
    pub(super) fn of_ids(ids: &[String]) -> Self {
        Self { count: ids.len() as i64, ids: ids.iter().take(FIRST).cloned().collect(), ..Self::default() }
    }
}

impl Connection {
    /// Writes the audit row of a change, in the transaction of the change. Does nothing if no record was changed.
    pub(super) async fn record(&mut self, by: &Actor, change: &Change<'_>) -> Result<(), StoreError> {
        if change.count == 0 {
            return Ok(());
        }
        self.mark_audited();
        let Actor { principal, broker, peer, method, reason } = by;
        let Change { type_ids, types, count, ids, before } = change;
        let (kind, name) = before.as_ref().map(|before| (before.kind, &*before.name)).unzip();
        let values = before.as_ref().and_then(|before| before.values.as_deref());
        let principal = principal.as_deref();
        let params: Params<'_> =
            &[&principal, broker, peer, method, reason, type_ids, types, count, ids, &kind, &name, &values];
        self.run(Statement::RecordChange, params).await
    }
}

impl Store {
    pub async fn list_audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, StoreError> {
        let AuditQuery { since_us, until_us, after, principal, method, id, task_type, at_most } = query;
        let (after_time, after_id) = after.unzip();
        let params: Params<'_> =
            &[since_us, until_us, &after_time, &after_id, principal, method, id, at_most, task_type];
        Ok(rows::all(&self.read(Statement::ListAudit, params).await?))
    }
}

impl AuditEntry {
    pub fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(self.time_us).unwrap_or_default())
    }
}
