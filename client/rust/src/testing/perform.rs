//! Runs a handler without a broker.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use howdah_proto::v1::{CancelReason, DependencyResult, Extension, LeasedJob, ProgressReport, work_request::Message};
use tokio::sync::mpsc;

use crate::{
    IntoOutcome, Job, NewJob, Outcome,
    setters::setters,
    worker::{Key, Lease, Mail},
};

/// Id and token of every job that [`perform`] runs.
const KEY: Key = Key { id: 1, token: 1 };

/// An attempt for [`perform`] to run: a job as a broker would deliver it. A [`NewJob`] converts into its first attempt.
#[derive(Debug, Clone)]
#[must_use = "an attempt does nothing until `perform` runs it"]
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

    setters! {
        /// Sets the number of the attempt, from 1. Default: 1.
        number(attempt: u32) => job.attempt = attempt;

        /// Sets the checkpoint stored by an earlier attempt.
        checkpoint(bytes: impl Into<Bytes>) => job.checkpoint = bytes.into();

        /// Cancels the job for this reason before the handler starts.
        cancelled(reason: CancelReason) => cancelled = Some(reason);
    }

    /// Sets the dependencies that [`Job::results`] returns.
    pub fn results(mut self, results: impl IntoIterator<Item = DependencyResult>) -> Self {
        self.job.after = results.into_iter().collect();
        self.job.dependency_count = i32::try_from(self.job.after.len()).unwrap_or(i32::MAX);
        self
    }
}

/// The result of [`perform`]: the handler's outcome, and the progress reports and extensions that it requested.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Performed {
    /// The outcome.
    pub outcome: Outcome,
    /// Progress reports and checkpoints of the handler, in order.
    pub reports: Vec<ProgressReport>,
    /// Extensions that the handler requested, in order.
    pub extensions: Vec<Extension>,
}

/// Runs a handler on a job without a broker. Progress reports and deadline extensions of the handler succeed at once. A panic
/// of the handler fails the test.
pub async fn perform<F, Fut>(handler: F, attempt: impl Into<Attempt>) -> Performed
where
    F: FnOnce(Job) -> Fut,
    Fut: Future,
    Fut::Output: IntoOutcome,
{
    let Attempt { job, cancelled } = attempt.into();
    let (mail_sender, mut mail) = mpsc::unbounded_channel();
    let lease = Lease::new(KEY, 0, mail_sender, Duration::from_secs(30));
    if let Some(reason) = cancelled {
        lease.cancel(reason);
    }
    let (mut reports, mut extensions) = (Vec::new(), Vec::new());
    let mut handled = std::pin::pin!(handler(Job::new(job, lease, None)));
    let outcome = loop {
        tokio::select! {
            biased;
            Some(Mail::Request(request)) = mail.recv() => {
                match request.message {
                    Message::Extend(extend) => extensions.extend(extend.extensions),
                    Message::Progress(progress) => reports.extend(progress.reports),
                    _ => {}
                }
                // Sending the reply fails only if the handler has stopped waiting for it.
                let _ = request.reply.send(Ok(()));
            }
            ended = &mut handled => break ended.into_outcome(),
        }
    };
    Performed { outcome, reports, extensions }
}

#[cfg(test)]
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
    async fn perform_passes_the_checkpoint_and_records_reports_and_extensions_of_the_handler() {
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
    async fn a_handler_gets_the_results_that_the_test_gives() {
        async fn join(job: Job) -> Result<String, JobError> {
            let (mut results, mut joined) = (job.results(), String::new());
            while let Some(part) = results.next().await? {
                joined += std::str::from_utf8(&part.result)?;
            }
            Ok(joined)
        }
        let part = |result: &'static str| DependencyResult { result: result.into(), ..Default::default() };
        let done = perform(join, Attempt::new(NewJob::new("join")).results([part("a"), part("b")])).await;
        assert_eq!(done.outcome, Outcome::ack("ab"));
    }

    #[tokio::test]
    async fn a_handler_sees_that_its_job_was_cancelled() {
        let done = perform(copies, Attempt::new(NewJob::new("copy")).cancelled(CancelReason::Timeout)).await;
        assert_eq!(done.outcome, Outcome::fail("Some(Timeout)"));
    }
}
