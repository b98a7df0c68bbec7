//! A client without a broker, which records enqueued jobs.

use std::sync::Arc;

use howdah_proto::v1 as proto;
use parking_lot::Mutex;

use crate::{Client, EnqueueOutcome, Enqueued, Result};

use super::rules;

/// Records the jobs enqueued by a [`recording_client`]. Clones share the recorded jobs.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<proto::NewJob>>>);

/// Creates a client for tests without a broker, and a recorder of all jobs enqueued by it or by its producers. All other calls
/// fail. A job whose fields a broker with default settings would refuse fails with the same code, reason and field.
///
/// # Panics
///
/// Panics outside of a tokio runtime.
pub fn recording_client() -> (Client, Recorder) {
    let recorder = Recorder::default();
    (Client::builder().recording(recorder.clone()), recorder)
}

impl Recorder {
    /// All enqueued jobs, in order.
    pub fn jobs(&self) -> Vec<proto::NewJob> {
        self.0.lock().clone()
    }

    /// The enqueued jobs of a type, in order.
    pub fn jobs_of(&self, task_type: &str) -> Vec<proto::NewJob> {
        self.0.lock().iter().filter(|job| job.task_type == task_type).cloned().collect()
    }

    /// Forgets all recorded jobs.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Asserts that a job of this type was enqueued; returns the last one.
    ///
    /// # Panics
    ///
    /// Panics if no job of this type was enqueued.
    #[track_caller]
    pub fn assert_enqueued(&self, task_type: &str) -> proto::NewJob {
        self.assert_enqueued_with(task_type, |_| true)
    }

    /// Asserts that a job of this type satisfying `expected` was enqueued; returns the last one.
    ///
    /// # Panics
    ///
    /// Panics if no such job was enqueued.
    #[track_caller]
    pub fn assert_enqueued_with(&self, task_type: &str, expected: impl Fn(&proto::NewJob) -> bool) -> proto::NewJob {
        let of_type = self.jobs_of(task_type);
        let found = of_type.iter().rev().find(|job| expected(job)).cloned();
        assert!(found.is_some(), "no such job of {task_type} among {of_type:?}; all jobs: {:?}", self.types());
        found.unwrap_or_default()
    }

    /// Asserts that no job of this type was enqueued.
    ///
    /// # Panics
    ///
    /// Panics if a job of this type was enqueued.
    #[track_caller]
    pub fn assert_not_enqueued(&self, task_type: &str) {
        let of_type = self.jobs_of(task_type);
        assert!(of_type.is_empty(), "jobs of {task_type} were enqueued: {of_type:?}");
    }

    fn types(&self) -> Vec<String> {
        self.0.lock().iter().map(|job| job.task_type.clone()).collect()
    }

    /// Returns the response of a broker that stores all jobs, or refuses them.
    pub(crate) fn record(&self, jobs: Vec<proto::NewJob>) -> Result<Vec<Enqueued>> {
        rules::check(&jobs)?;
        let mut all = self.0.lock();
        let one = |job| {
            all.push(job);
            Enqueued { id: all.len() as i64, is_new: true, outcome: EnqueueOutcome::New }
        };
        Ok(jobs.into_iter().map(one).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Middleware, NewJob};

    #[tokio::test]
    async fn jobs_enqueued_by_calls_and_by_pipelines_are_recorded() {
        let (client, recorder) = recording_client();
        let first = client.enqueue(NewJob::new("a").payload("1")).await.unwrap();
        let second = client.producer().enqueue(NewJob::new("b").key("k")).await.unwrap();
        assert_eq!((first.id, second.id), (1, 2));
        recorder.assert_enqueued_with("a", |job| job.payload == "1");
        assert_eq!(recorder.assert_enqueued("b").key, "k");
        recorder.assert_not_enqueued("c");
        recorder.clear();
        recorder.assert_not_enqueued("a");
    }

    #[tokio::test]
    #[should_panic(expected = "no such job of a among []")]
    async fn assert_enqueued_panics_without_such_a_job() {
        recording_client().1.assert_enqueued("a");
    }

    struct Marks;

    impl Middleware for Marks {
        fn enqueue(&self, jobs: &mut [NewJob]) -> Result<()> {
            if jobs.iter().any(|job| job.task_type() == "forbidden") {
                return Err(Error::refused("task_type", "is forbidden"));
            }
            jobs.iter_mut().for_each(|job| *job = job.clone().header("mark", "1"));
            Ok(())
        }
    }

    #[tokio::test]
    async fn middleware_changes_jobs_or_refuses_them_before_they_are_sent() {
        let recorder = Recorder::default();
        let client = Client::builder().middleware(Marks).recording(recorder.clone());
        client.enqueue_all_with_key([NewJob::new("a")], "key").await.unwrap();
        client.producer().enqueue(NewJob::new("b")).await.unwrap();
        assert!(recorder.jobs().iter().all(|job| job.headers["mark"] == "1"));
        let refused = client.enqueue(NewJob::new("forbidden")).await.unwrap_err();
        assert_eq!(refused.field(), Some("task_type"));
        assert_eq!(recorder.jobs().len(), 2);
    }
}
