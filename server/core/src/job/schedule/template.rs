//! Templates of the jobs that schedules enqueue.

use bytes::Bytes;
use howdah_proto::{
    json::{self, JsonError},
    v1,
};

/// Template of the jobs that a schedule enqueues.
#[derive(Clone, Debug, Eq)]
pub struct Template {
    /// A `howdah.v1.NewJob` without its payload, as JSON.
    pub message: String,
    /// Payload of the job.
    pub payload: Bytes,
    /// Task type of the jobs, shown in lists of schedules.
    pub task_type: String,
}

impl Template {
    /// Creates a template from a job.
    pub fn new(mut job: v1::NewJob) -> Result<Self, JsonError> {
        let payload = std::mem::take(&mut job.payload);
        let message = json::write("NewJob", &job)?.to_string();
        Ok(Self { message, payload, task_type: job.task_type })
    }

    /// Returns the job. Fails if the stored message is not a job.
    pub fn job(&self) -> Result<v1::NewJob, JsonError> {
        let job: v1::NewJob = json::read("NewJob", self.message.as_bytes())?;
        Ok(v1::NewJob { payload: self.payload.clone(), ..job })
    }
}

impl PartialEq for Template {
    /// Compares the jobs: headers have no order, so equal jobs may have different texts.
    fn eq(&self, other: &Self) -> bool {
        match (self.job(), other.job()) {
            (Ok(job), Ok(other)) => job == other,
            _ => self.message == other.message && self.payload == other.payload,
        }
    }
}
