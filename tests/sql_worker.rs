//! `howdah work --sql`: jobs are SQL, in a real database, run by the real program.

mod errors; // what a job is told that failed
mod features; // what pg_task's users look for
mod import; // howdah import pg_task
mod results; // text and JSON
mod sessions; // connections, cancels, secrets

use std::ops::Deref;

use howdah_client::{Client, NewJob, RetryPolicy};
use howdah_proto::v1::{Job, JobState};

use crate::support::*;

/// A broker, and what is said to it by the client.
struct SqlBroker {
    broker: TestBroker,
    client: Client,
}

/// A statement that ends when it is ended.
const ENDLESS: &str = "SELECT pg_sleep('infinity')";

impl Deref for SqlBroker {
    type Target = TestBroker;

    fn deref(&self) -> &TestBroker {
        &self.broker
    }
}

/// A job of the worker's own type. If it fails, it is not tried again while a test looks at it.
fn sql(text: &str) -> NewJob {
    NewJob::new("sql").payload(text.to_owned()).retry_policy(RetryPolicy::exponential(HOUR, HOUR))
}

impl SqlBroker {
    async fn start() -> Self {
        let broker = TestBroker::start().await;
        let client = broker.client().await;
        Self { broker, client }
    }

    async fn enqueue(&self, jobs: Vec<NewJob>) -> Vec<i64> {
        let enqueued = self.client.enqueue_all(jobs).await.expect("enqueue");
        enqueued.iter().map(|job| job.id).collect()
    }

    /// A worker with these flags, to its end, which must be a good one; what it wrote to stderr.
    async fn work(&self, flags: &[&str]) -> String {
        let args = [&["work", "--server", &self.grpc, "--sql", &self.database.url], flags].concat();
        let (status, _, errors) = run(&args, b"").await;
        assert!(status.success(), "{flags:?}: {status}: {errors}");
        errors
    }

    fn start_work(&self, flags: &[&str]) -> Program {
        Program::start(&[&["work", "--server", &self.grpc, "--sql", &self.database.url], flags].concat())
    }

    /// What became of these jobs when each was tried once, one after the other.
    async fn done(&self, jobs: Vec<NewJob>) -> Vec<Job> {
        let count = jobs.len().to_string();
        let ids = self.enqueue(jobs).await;
        self.work(&["--max-jobs", &count]).await;
        let mut done = Vec::new();
        for id in ids {
            done.push(self.job(id).await);
        }
        done
    }

    /// The result of a job, as text.
    async fn result(&self, job: NewJob) -> String {
        let job = self.done(vec![job]).await.remove(0);
        assert_eq!(job.state(), JobState::Succeeded, "{:?}", job.failures);
        String::from_utf8(job.result.to_vec()).expect("UTF-8")
    }

    /// Waits until the statement of a job sleeps in the server.
    async fn until_running(&self, id: i64) {
        let sql = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE application_name = 'howdah job {id}' AND datname = current_database() AND state = 'active'
                   AND wait_event = 'PgSleep'"
        );
        self.until("a running statement", &sql).await;
    }

    async fn until_gone(&self, id: i64) {
        let sql = format!(
            "SELECT count(*) = 0 FROM pg_stat_activity
             WHERE application_name = 'howdah job {id}' AND datname = current_database() AND state <> 'idle'"
        );
        self.until("the end of the statement", &sql).await;
    }
}
