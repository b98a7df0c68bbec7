//! The kinds of built-in workers.

use std::sync::Arc;

use crate::workers::{
    attempt::{Attempt, Ending},
    exec::Exec,
    lines::Lines,
    post::Post,
    reports::Reports,
    sql::Sql,
};

/// How a job is run.
pub(super) enum Kind {
    /// A process for each job.
    Exec(Exec),
    /// A line of JSON to a process.
    Lines(Lines),
    /// An HTTP request.
    Post(Box<Post>),
    /// SQL statements in a database.
    Sql(Box<Sql>),
}

impl Kind {
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

    /// Called when no more jobs will come.
    pub(super) async fn close(&self) {
        match self {
            Self::Exec(_) | Self::Post(_) => {}
            Self::Lines(lines) => lines.close().await,
            Self::Sql(sql) => sql.close().await,
        }
    }
}
