//! Runs a handler without a broker.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use howdah_proto::v1::{CancelReason, Extension, LeasedJob, ProgressReport};

use crate::{
    IntoOutcome, Job, NewJob, Outcome,
    worker::{Key, Lease, Mail, Mailbox},
};

/// The lease of each job that is performed here.
const KEY: Key = Key { id: 1, token: 1 };

/// One attempt to perform: a job as a broker would deliver it. [`NewJob`] turns into its first attempt.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is performed"]
pub struct Attempt {
    job: LeasedJob,
    cancelled: Option<CancelReason>,
}

impl From<NewJob> for Attempt {
    fn from(job: NewJob) -> Self {
        let job = job.into_proto();
        let mut tags: Vec<String> = Vec::new();
        for tag in job.tags {
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        let max_attempts = if job.max_attempts == 0 { 10 } else { job.max_attempts };
        let leased = LeasedJob {
            id: KEY.id,
            token: KEY.token,
            task_type: job.task_type,
            attempt: 1,
            max_attempts,
            payload: job.payload,
            headers: job.headers,
            tags,
            traceparent: job.traceparent,
            tracestate: job.tracestate,
            ..LeasedJob::default()
        };
        Self { job: leased, cancelled: None }
    }
}

impl Attempt {
    /// The first attempt of a job.
    pub fn new(job: NewJob) -> Self {
        job.into()
    }

    /// The number of the attempt.
    pub fn number(mut self, attempt: u32) -> Self {
        self.job.attempt = attempt;
        self
    }

    /// The checkpoint that an earlier attempt has stored.
    pub fn checkpoint(mut self, bytes: impl Into<Bytes>) -> Self {
        self.job.checkpoint = bytes.into();
        self
    }

    /// The job is cancelled from the start, for this reason.
    pub fn cancelled(mut self, reason: CancelReason) -> Self {
        self.cancelled = Some(reason);
        self
    }
}

/// What a handler did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Performed {
    /// How it ended.
    pub outcome: Outcome,
    /// What it reported, in order: progress and checkpoints.
    pub reports: Vec<ProgressReport>,
    /// The extensions that it asked for.
    pub extensions: Vec<Extension>,
}

/// Runs a handler on a job, without a broker: reports and extensions are answered at once. A panic of the handler is one of
/// the test.
pub async fn perform<F, Fut>(handler: F, attempt: impl Into<Attempt>) -> Performed
where
    F: FnOnce(Job) -> Fut,
    Fut: Future,
    Fut::Output: IntoOutcome,
{
    let Attempt { job, cancelled } = attempt.into();
    let mailbox = Arc::new(Mailbox::new());
    let lease = Lease::new(KEY, mailbox.clone(), Duration::from_secs(30));
    if let Some(reason) = cancelled {
        lease.cancel(reason);
    }
    let (mut reports, mut extensions) = (Vec::new(), Vec::new());
    let mut handled = std::pin::pin!(handler(Job::new(job, lease)));
    let outcome = loop {
        tokio::select! {
            biased;
            () = mailbox.wake.notified() => {
                let mail = mailbox.take(Mail::default());
                for ask in mail.reports {
                    reports.push(ask.what);
                    // Who asked may have stopped waiting.
                    let _ = ask.reply.send(Ok(()));
                }
                for ask in mail.extensions {
                    extensions.push(ask.what);
                    let _ = ask.reply.send(Ok(()));
                }
            }
            ended = &mut handled => break ended.into_outcome(),
        }
    };
    Performed { outcome, reports, extensions }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::JobError;

    async fn copies(job: Job) -> Result<&'static str, JobError> {
        if job.is_cancelled() {
            return Err(JobError::fatal(format!("{:?}", job.cancel_reason())));
        }
        job.extend(Duration::from_secs(60)).await?;
        let from = job.last_checkpoint().map_or(0, Bytes::len);
        job.checkpoint(vec![0; from + 1]).await?;
        Ok("copied")
    }

    #[tokio::test]
    async fn a_handler_is_performed_with_a_checkpoint_and_what_it_says_is_kept() {
        let attempt = Attempt::new(NewJob::new("copy")).number(2).checkpoint("xyz");
        let done = perform(copies, attempt).await;
        assert_eq!(done.outcome, Outcome::ack("copied"));
        assert_eq!(
            done.reports.iter().map(|report| report.checkpoint.as_ref().unwrap().len()).collect::<Vec<_>>(),
            [4]
        );
        assert_eq!(done.extensions[0].duration.unwrap().seconds, 60);
    }

    #[tokio::test]
    async fn a_handler_sees_that_its_job_was_cancelled() {
        let done = perform(copies, Attempt::new(NewJob::new("copy")).cancelled(CancelReason::Timeout)).await;
        assert_eq!(done.outcome, Outcome::fail("Some(Timeout)"));
    }
}
