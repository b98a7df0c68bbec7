//! Kinds of built-in workers.

use std::sync::Arc;

use howdah_client::Client;

use crate::workers::{
    attempt::{Attempt, Ending},
    exec::Exec,
    lines::Lines,
    post::Post,
    reports::Reports,
    sql::Sql,
};

/// Kind of a built-in worker.
pub(super) enum Kind {
    /// Runs one process per job.
    Exec(Exec),
    /// Sends one line of JSON per job to a process that serves many jobs.
    Lines(Lines),
    /// Sends one HTTP request per job.
    Post(Box<Post>),
    /// Runs the SQL statements of each job in one transaction in a database.
    Sql(Box<Sql>),
}

impl Kind {
    /// Gives the worker the client that it receives its jobs with.
    pub(super) fn with_client(self, client: &Client) -> Self {
        match self {
            Self::Sql(sql) => Self::Sql(Box::new(sql.by_store(client.clone()))),
            other => other,
        }
    }

    /// Whether the worker passes the results of dependencies on, as a file.
    pub(super) fn takes_results(&self) -> bool {
        matches!(self, Self::Exec(_) | Self::Lines(_))
    }

    /// Runs one attempt to its end, or until `cancelled`.
    pub(super) async fn run(
        &self,
        attempt: &Attempt,
        reports: &Arc<Reports>,
        cancelled: impl Future<Output = ()>,
    ) -> Ending {
        match self {
            Self::Exec(exec) => exec.run(attempt, reports, cancelled).await,
            Self::Lines(lines) => lines.run(attempt, reports, cancelled).await,
            Self::Post(post) => post.run(attempt, cancelled).await,
            Self::Sql(sql) => sql.run(attempt, cancelled).await,
        }
    }

    /// Releases resources. Called after the last job.
    pub(super) async fn close(&self) {
        match self {
            Self::Exec(_) | Self::Post(_) => {}
            Self::Lines(lines) => lines.close().await,
            Self::Sql(sql) => sql.close().await,
        }
    }
}
