//! What every test needs: a database, brokers in this process, worker streams, the real program.

mod broker;
mod cluster;
mod program;
mod worker;

use std::{future::Future, time::Duration};

pub use broker::{TestBroker, metrics};
pub use cluster::{TestDatabase, cluster_config, database};
pub use program::{Program, has_language, howdah, run};
pub use worker::{Worker, ack, jobs_client, nack, new_job, open, schedules_client, task_types_client, workers_client};

/// The longest that anything may take in a test before it counts as hanging. Generous: machines are
/// slow at times, and no test measures time.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A directory that other users can enter: as root, Postgres and its like run as another.
pub fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// Waits for something that must come.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not come in {PATIENCE:?}"))
}

/// Asks Postgres until it answers yes; what is being waited for has no signal of its own.
pub async fn until(database: &TestDatabase, what: &str, sql: &str) {
    until_on(&database.connect().await, what, sql).await;
}

/// The same on a connection that is there already.
pub async fn until_on(client: &tokio_postgres::Client, what: &str, sql: &str) {
    soon(what, async {
        loop {
            if client.query_one(sql, &[]).await.expect(sql).get::<_, bool>(0) {
                return;
            }
            // Time passes where the database is, so that this process does not spin.
            client.simple_query("SELECT pg_sleep(0.02)").await.expect("pg_sleep");
        }
    })
    .await;
}
