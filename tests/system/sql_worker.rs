//! Tests `howdah work --sql`: jobs are SQL statements, run by the real program in a real database.

mod errors; // errors of failed jobs
mod features; // features of pg_task
mod import; // howdah import pg_task
mod results; // text and JSON
mod sessions; // connections, cancels, secrets

use std::ops::Deref;

use howdah_client::{Client, NewJob, RetryPolicy};
use howdah_proto::v1::{Job, JobState};

use crate::support::*;

/// A broker and a client connected to it.
struct SqlBroker {
    broker: TestBroker,
    client: Client,
}

/// A statement that runs until it is cancelled.
const ENDLESS: &str = "SELECT pg_sleep('infinity')";

impl Deref for SqlBroker {
    type Target = TestBroker;

    fn deref(&self) -> &TestBroker {
        &self.broker
    }
}

/// Returns a SQL job that is retried only an hour after a failure, so that a test can check the failure.
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

    /// Runs `howdah work` with these flags until it ends, which must succeed. Returns its standard error.
    async fn work(&self, flags: &[&str]) -> String {
        let args = [&["work", "--server", &self.grpc, "--sql", &self.database.url], flags].concat();
        let (status, _, errors) = run(&args, b"").await;
        assert!(status.success(), "{flags:?}: {status}: {errors}");
        errors
    }

    fn start_work(&self, flags: &[&str]) -> Program {
        Program::start(&[&["work", "--server", &self.grpc, "--sql", &self.database.url], flags].concat())
    }

    /// Runs these jobs one after another, one attempt each, and returns the jobs.
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

    /// Runs a job and returns its result as text.
    async fn result(&self, job: NewJob) -> String {
        let job = self.done(vec![job]).await.remove(0);
        assert_eq!(job.state(), JobState::Succeeded, "{:?}", job.failures);
        String::from_utf8(job.result.to_vec()).expect("UTF-8")
    }

    /// Waits until the statement of a job sleeps in the database server.
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
