//! Moves the planned tasks of `pg_task` to a broker, safely against interruption at any point. Each transaction locks rows,
//! enqueues their jobs and marks the rows. After an interruption, run the import again: each task has a unique request key, so it
//! becomes one job even if it is sent several times within 24 hours.
//!
//! - `task`: the job or schedule for a task
//! - this module: the import, and the prediction why a broker would refuse a task

mod task;

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use howdah_client::{Client, Error, NewSchedule};
use howdah_core::{error, job::ClusterSettings};
use howdah_engine::store::{Source, open_connection};
use howdah_server::api;
use tokio_postgres::{Client as Database, types::Oid};

use self::task::{Becomes, Task};

pub use self::task::Target;

/// Maximum number of tasks per transaction. All of them are in memory, and the input of a task may have 4 MiB.
const BATCH: i64 = 200;
/// Smallest `max` of a group without a limit. The default until 2022 was the largest integer, from which `planned.sql` may
/// subtract one.
const UNLIMITED: i64 = i32::MAX as i64 - 1;
/// Maximum number of concurrent requests to the broker.
const AT_ONCE: usize = 64;

/// A table of `pg_task`.
pub struct Table {
    database: Database,
    /// Name of the table, quoted for use in SQL.
    name: String,
    /// Ids of the server, the database and the table. Part of each request key, and a header of each job.
    identity: String,
    /// Column for the result of a task: `output`, or `response` in old tables.
    output: &'static str,
}

/// Columns that the import needs: the name, and the name in tables of older versions.
const COLUMNS: [(&str, Option<&str>); 6] =
    [("id", None), ("plan", Some("dt")), ("stop", None), ("state", None), ("input", Some("request")), OUTPUT];
const OUTPUT: (&str, Option<&str>) = ("output", Some("response"));

/// Result of the import of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The task became the job with this id; 0 in a dry run.
    Job(i64),
    /// The task became the schedule with this name.
    Schedule(String),
    /// The task stays in the table, for this reason.
    Not(String),
}

/// Treatment of the rows of moved tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The row gets the state DONE, and its column `output` names the job or schedule.
    Marked,
    Deleted,
}

/// Reason why the import stopped.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Error of the database of `pg_task`.
    #[error("pg_task's database: {0}")]
    Database(String),
    /// The table has no column that every version of `pg_task` has.
    #[error("{0}")]
    Columns(String),
    /// Error of the broker.
    #[error(transparent)]
    Broker(#[from] Error),
}

impl From<tokio_postgres::Error> for ImportError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error::describe(&error))
    }
}

impl Table {
    /// Connects to the database and looks up the table of `pg_task`.
    pub async fn open(dsn: &str, table: &str) -> Result<Self, ImportError> {
        let loaded = Source::new(dsn, None).load().map_err(ImportError::Database)?;
        let mut opened = Err(ImportError::Database("the connection string has no host".into()));
        for (dsn, connector) in &loaded.each {
            opened = open_connection(dsn, connector.clone(), None)
                .await
                .map_err(|error| ImportError::Database(error.to_string()));
            if opened.is_ok() {
                break;
            }
        }
        let (database, driver, _) = opened?;
        tokio::spawn(driver);
        // DateStyle and IntervalStyle need not be set: the session that formats times and intervals also parses them.
        database.batch_execute("SET idle_in_transaction_session_timeout = '10min'").await?;
        let found = "SELECT $1::text::regclass::oid AS table, $1::text::regclass::text AS name, d.oid AS database,
                            (SELECT system_identifier FROM pg_control_system())::text AS cluster,
                            ARRAY(SELECT attname::text FROM pg_attribute
                                  WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped) AS columns
                     FROM pg_database d WHERE datname = current_database()";
        let row = database.query_one(found, &[&table]).await?;
        let (oid, database_oid): (Oid, Oid) = (row.try_get("table")?, row.try_get("database")?);
        let identity = format!("pg_task/{}/{database_oid}/{oid}", row.try_get::<_, String>("cluster")?);
        let name: String = row.try_get("name")?;
        let columns: Vec<String> = row.try_get("columns")?;
        for column in COLUMNS {
            known(column, &columns).ok_or_else(|| ImportError::Columns(missing(&name, column)))?;
        }
        let output = known(OUTPUT, &columns).unwrap_or(OUTPUT.0);
        Ok(Self { database, name, identity, output })
    }

    /// Counts the tasks by state.
    pub async fn count(&self) -> Result<BTreeMap<String, i64>, ImportError> {
        let sql = format!("SELECT \"state\"::text, count(*) FROM {} GROUP BY 1", self.name);
        let rows = self.database.query(&sql, &[]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// Moves all planned tasks. Reports each task, in the order of ids, after its transaction has committed. Without a broker,
    /// only reports what would be moved. Returns the values of the column `max` of the moved tasks, which limit their groups.
    pub async fn move_to(
        &self,
        broker: Option<&Client>,
        target: &Target,
        rows: Rows,
        mut on_moved: impl FnMut(i64, &Moved),
    ) -> Result<BTreeSet<i64>, ImportError> {
        let lock = if broker.is_some() { "FOR UPDATE OF t SKIP LOCKED" } else { "" };
        let planned = include_str!("planned.sql").replace("{table}", &self.name).replace("{lock}", lock);
        let (mut after, mut limits) = (i64::MIN, BTreeSet::new());
        loop {
            self.database.batch_execute("BEGIN").await?;
            let found = self.database.query(&planned, &[&after, &BATCH]).await?;
            let tasks = found.iter().map(Task::read).collect::<Result<Vec<_>, _>>()?;
            let Some(last) = tasks.last() else { break };
            after = last.id;
            let moved: Vec<(i64, Moved)> = stream::iter(&tasks)
                .map(async |task| Ok::<_, ImportError>((task.id, Box::pin(self.move_one(broker, task, target)).await?)))
                .buffered(AT_ONCE)
                .collect::<Vec<_>>()
                .await
                .into_iter()
                .collect::<Result<_, _>>()?;
            if broker.is_some() {
                self.mark(&moved, rows).await?;
            }
            self.database.batch_execute("COMMIT").await?;
            for ((id, moved), task) in moved.iter().zip(&tasks) {
                if !matches!(moved, Moved::Not(_)) && task.max < UNLIMITED {
                    limits.insert(task.max);
                }
                on_moved(*id, moved);
            }
        }
        self.database.batch_execute("COMMIT").await?;
        Ok(limits)
    }

    async fn move_one(&self, broker: Option<&Client>, task: &Task, target: &Target) -> Result<Moved, ImportError> {
        let becomes = task.becomes(target, &self.identity);
        if broker.is_none()
            && let Some(reason) = refusal(&becomes)
        {
            return Ok(Moved::Not(reason));
        }
        let moved = match (becomes, broker) {
            (Becomes::Nothing(reason), _) => return Ok(Moved::Not(reason)),
            (Becomes::Job(_), None) => return Ok(Moved::Job(0)),
            (Becomes::Schedule(schedule), None) => return Ok(Moved::Schedule(schedule.name().to_owned())),
            (Becomes::Job(job), Some(broker)) => {
                let key = format!("{}/{}", self.identity, task.id);
                let enqueued = broker.enqueue_all_with_key([*job], key).await;
                enqueued.map(|jobs| Moved::Job(jobs.first().map_or(0, |job| job.id)))
            }
            (Becomes::Schedule(schedule), Some(broker)) => Box::pin(self.schedule(broker, task, *schedule)).await,
        };
        match moved {
            Ok(moved) => Ok(moved),
            // The broker refused only this task, so the import continues with the others.
            Err(Error::Status(status)) if is_refusal(status.code) => {
                Ok(Moved::Not(reason(&status.field, &status.message)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a schedule. If its start is in the past, its first job is enqueued now, as `pg_task` would run it immediately, and
    /// the schedule continues with the next planned time.
    async fn schedule(&self, broker: &Client, task: &Task, schedule: NewSchedule) -> Result<Moved, Error> {
        let name = schedule.name().to_owned();
        let schedule = match broker.create_schedule(schedule).await {
            Err(error) if error.code() == tonic::Code::AlreadyExists => {
                return Ok(Moved::Not(format!("another schedule {name:?} exists; use another --schedule-prefix")));
            }
            created => created?,
        };
        let order = |time: Option<prost_types::Timestamp>| time.map(|time| (time.seconds, time.nanos));
        if !task.is_late && order(schedule.start_time) <= order(schedule.create_time) {
            let key = format!("{}/{}/first", self.identity, task.id);
            broker.run_schedule_with_key(&schedule.name, key).await?;
        }
        Ok(Moved::Schedule(schedule.name))
    }

    /// Marks or deletes the rows, so that `pg_task` does not run the tasks.
    async fn mark(&self, moved: &[(i64, Moved)], rows: Rows) -> Result<(), ImportError> {
        let (mut ids, mut notes) = (Vec::new(), Vec::new());
        for (id, moved) in moved {
            match moved {
                Moved::Job(job) => notes.push(format!("moved to Howdah as job {job}")),
                Moved::Schedule(name) => notes.push(format!("moved to Howdah as schedule {name}")),
                Moved::Not(_) => continue,
            }
            ids.push(*id);
        }
        let Self { name, output, .. } = self;
        match rows {
            Rows::Deleted => {
                let sql = format!("DELETE FROM {name} WHERE \"id\" = ANY ($1)");
                self.database.execute(&sql, &[&ids]).await?;
            }
            Rows::Marked => {
                let sql = format!(
                    "UPDATE {name} AS t SET \"state\" = 'DONE', \"stop\" = now(), \"{output}\" = m.note
                     FROM unnest($1::bigint[], $2::text[]) AS m (id, note) WHERE t.\"id\" = m.id"
                );
                self.database.execute(&sql, &[&ids, &notes]).await?;
            }
        }
        Ok(())
    }
}

/// Returns the name of a column in this table. `None` if the table does not have the column.
fn known((name, old): (&'static str, Option<&'static str>), columns: &[String]) -> Option<&'static str> {
    [Some(name), old].into_iter().flatten().find(|name| columns.iter().any(|column| column == name))
}

fn missing(table: &str, (name, old): (&str, Option<&str>)) -> String {
    let old = old.map_or(String::new(), |old| format!(", nor {old}, its name in older versions"));
    format!(
        "{table} is not a table of pg_task: it has no column {name}{old}. The import reads the tables of all versions since \
         March 2019; name another table with --table"
    )
}

fn is_refusal(code: tonic::Code) -> bool {
    matches!(code, tonic::Code::InvalidArgument | tonic::Code::AlreadyExists | tonic::Code::OutOfRange)
}

/// Reason why a cluster with default settings would refuse the job or schedule.
fn refusal(becomes: &Becomes) -> Option<String> {
    let limits = ClusterSettings::DEFAULT;
    let checked: Result<(), error::Error> = match becomes {
        Becomes::Job(job) => api::check_jobs(vec![job.clone().into_proto()], &limits),
        Becomes::Schedule(schedule) => api::check_schedule(schedule.clone().into_proto(), &limits),
        Becomes::Nothing(_) => Ok(()),
    };
    checked.err().map(|error| reason(error.field().unwrap_or_default(), &error.to_string()))
}

/// Returns the broker's error, prefixed with the column of `pg_task` that caused it.
fn reason(field: &str, message: &str) -> String {
    match column(field) {
        Some(column) => format!("column {column}: {message}"),
        None => message.to_owned(),
    }
}

/// Returns the column of `pg_task` from which a request field such as `jobs[0].run_at` is derived.
fn column(field: &str) -> Option<&'static str> {
    Some(match field.rsplit('.').next()? {
        "payload" => "input",
        "run_at" | "start_time" => "plan",
        "expire_at" | "expire_after" => "active",
        "timeout" => "timeout",
        "limit_key" => "group",
        "period" => "repeat",
        "headers" => "data, remote or null",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_column_if_one_is_at_fault() {
        assert_eq!(reason("jobs[0].run_at", "is late"), "column plan: is late");
        assert_eq!(reason("schedule.template.limit_key", "is long"), "column group: is long");
        assert_eq!(reason("", "no"), "no");
    }
}
