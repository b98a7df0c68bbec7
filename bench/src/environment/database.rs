//! SQL statements and counters of Postgres.

use tokio_postgres::{Client, NoTls, SimpleQueryMessage, types::ToSql};

use crate::error::{Error, Result};

/// A database connection, closed when dropped.
#[derive(Debug)]
pub(crate) struct Database {
    client: Client,
    name: String,
    url: String,
}

impl Database {
    /// Connects without TLS.
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let connected = tokio_postgres::connect(url, NoTls).await;
        let (client, connection) = connected.map_err(Error::postgres("cannot connect to Postgres"))?;
        tokio::spawn(connection);
        let row = client.query_one("SELECT current_database()::text", &[]).await;
        let name = row.map_err(Error::postgres("current_database"))?.get(0);
        Ok(Self { client, name, url: url.to_owned() })
    }

    /// Opens another connection to the same database.
    pub(crate) async fn another_connection(&self) -> Result<Self> {
        Self::connect(&self.url).await
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs statements. `operation` names them in errors.
    pub(crate) async fn execute(&self, sql: &str, operation: &'static str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(Error::postgres(operation))
    }

    /// Runs a query that returns one row with one `bigint`, and returns the number.
    pub(crate) async fn number(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<i64> {
        let row = self
            .client
            .query_one(sql, parameters)
            .await
            .map_err(Error::postgres("cannot query the benchmark's database"))?;
        row.try_get(0).map_err(Error::postgres("cannot query the benchmark's database"))
    }

    /// Runs a query with the simple protocol and returns the first column of its first row as text. No transaction surrounds
    /// the query, so a procedure may commit.
    pub(crate) async fn text(&self, sql: &str, operation: &'static str) -> Result<String> {
        let messages = self.client.simple_query(sql).await.map_err(Error::postgres(operation))?;
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(row.unwrap_or_default().to_owned())
    }

    /// Id of a task type, which is created if it does not exist.
    pub(crate) async fn task_type(&self, name: &str) -> Result<i64> {
        let make = "INSERT INTO howdah.task_type (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name \
                    RETURNING id::bigint";
        self.number(make, &[&name]).await
    }

    /// Time on the clock of Postgres, in microseconds.
    pub(crate) async fn now(&self) -> Result<i64> {
        self.number("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", &[]).await
    }

    /// Bytes of write-ahead log since the cluster was created.
    pub(crate) async fn wal_bytes(&self) -> Result<i64> {
        self.number("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint", &[]).await
    }

    /// Committed transactions of another database of this cluster. Sessions report them at most once per second.
    pub(crate) async fn commits(&self, database: &str) -> Result<i64> {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1";
        self.number(sql, &[&database]).await
    }

    /// Number of sessions of this database that wait for a heavyweight lock on a row, page or transaction.
    pub(crate) async fn lock_waits(&self) -> Result<i64> {
        let sql = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
        self.number(sql, &[]).await
    }

    /// Process ids of Postgres's sessions and background processes.
    pub(crate) async fn pids(&self) -> Result<Vec<u32>> {
        let rows = self.client.query("SELECT pid FROM pg_stat_activity", &[]).await;
        let rows = rows.map_err(Error::postgres("pg_stat_activity"))?;
        Ok(rows.iter().filter_map(|row| u32::try_from(row.get::<_, i32>(0)).ok()).collect())
    }
}
