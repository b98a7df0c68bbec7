//! The audit: what people and programs have changed. A row is written in the transaction of the change.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio_postgres::Row;

use super::{Connection, Statement, Store, StoreError, transaction::Transaction};
use crate::job::TypeId;

/// The most ids and task types of a row.
const FIRST: usize = 10;

/// Who changes something by which call, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The caller; empty: nobody in particular; `None`: the role of this session of Postgres.
    pub principal: Option<Arc<str>>,
    /// The name of the broker; `None`: a program that uses the database itself.
    pub broker: Option<String>,
    /// The address of the caller; `None`: that of this session of Postgres.
    pub peer: Option<String>,
    /// The call.
    pub method: &'static str,
    /// The caller's reason; empty: none.
    pub reason: String,
}

impl Actor {
    /// The principal; empty: nobody in particular, or a role of Postgres.
    pub(crate) fn name(&self) -> &str {
        self.principal.as_deref().unwrap_or_default()
    }
}

/// What was changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Change<'a> {
    /// Task types by id.
    pub(super) type_ids: Vec<TypeId>,
    /// Task types by name.
    pub(super) types: Vec<&'a str>,
    /// How many things.
    pub(super) count: i64,
    /// The first of them.
    pub(super) ids: Vec<String>,
}

/// A row of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its id.
    pub id: i64,
    /// When it was written, in µs after 1970.
    pub time_us: i64,
    /// Who; empty: nobody in particular.
    pub principal: String,
    /// The name of the broker; `None`: an SQL function.
    pub broker: Option<String>,
    /// The address of the caller.
    pub peer: String,
    /// The call, or the SQL function.
    pub method: String,
    /// The first task types.
    pub types: Vec<String>,
    /// How many things were changed.
    pub count: i64,
    /// The first of them.
    pub ids: Vec<String>,
    /// The caller's reason.
    pub reason: String,
}

/// The rows to list; the newest come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// From this time on, in µs after 1970.
    pub since_us: Option<i64>,
    /// Before this time.
    pub until_us: Option<i64>,
    /// After the row of this time and id.
    pub after: Option<(i64, i64)>,
    /// Of this principal.
    pub principal: Option<String>,
    /// Of this call.
    pub method: Option<String>,
    /// With this id among the first.
    pub id: Option<String>,
    /// The most rows.
    pub at_most: i32,
}

impl Actor {
    /// A program that uses the database itself, as the role of its session.
    pub fn of_session(method: &'static str) -> Self {
        Self { principal: None, broker: None, peer: None, method, reason: String::new() }
    }
}

impl<'a> Change<'a> {
    /// Of jobs: their ids, each with its type.
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

    /// Of something with a name and a task type.
    pub(super) fn of_name(name: &str, task_type: &'a str) -> Self {
        Self { types: vec![task_type], count: 1, ids: vec![name.to_owned()], ..Self::default() }
    }

    /// Of things that have no task type.
    pub(super) fn of_ids(ids: &[String]) -> Self {
        Self { count: ids.len() as i64, ids: ids.iter().take(FIRST).cloned().collect(), ..Self::default() }
    }
}

/// Records a change in its transaction. Nothing changed, nothing is recorded.
pub(super) async fn record(connection: &mut Connection, by: &Actor, change: &Change<'_>) -> Result<(), StoreError> {
    if change.count == 0 {
        return Ok(());
    }
    connection.will_change();
    let Actor { principal, broker, peer, method, reason } = by;
    let Change { type_ids, types, count, ids } = change;
    let principal = principal.as_deref();
    connection
        .query(Statement::RecordChange, &[&principal, broker, peer, method, reason, type_ids, types, count, ids])
        .await
        .map(drop)
}

impl Transaction<'_> {
    /// Records a change in this transaction, which made it.
    pub(super) async fn record(&mut self, by: &Actor, change: &Change<'_>) -> Result<(), StoreError> {
        record(self.connection(), by, change).await
    }
}

impl Store {
    /// A page of the audit.
    pub async fn list_audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, StoreError> {
        let AuditQuery { since_us, until_us, after, principal, method, id, at_most } = query;
        let (after_time, after_id) = after.unzip();
        let rows = self
            .read(Statement::ListAudit, &[since_us, until_us, &after_time, &after_id, principal, method, id, at_most])
            .await?;
        Ok(rows.iter().map(entry).collect())
    }

    /// Drops partitions of the audit older than this many days; returns how many.
    pub async fn drop_audit_partitions(&self, days_kept: i32) -> Result<i32, StoreError> {
        Ok(self.general().await?.query_one(Statement::DropAuditPartitions, &[&days_kept]).await?.get(0))
    }
}

impl AuditEntry {
    /// When it was written.
    pub fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(self.time_us).unwrap_or_default())
    }
}

fn entry(row: &Row) -> AuditEntry {
    AuditEntry {
        id: row.get("id"),
        time_us: row.get("time"),
        principal: row.get("principal"),
        broker: row.get("broker"),
        peer: row.get("peer"),
        method: row.get("method"),
        types: row.get("types"),
        count: row.get("count"),
        ids: row.get("ids"),
        reason: row.get("reason"),
    }
}
