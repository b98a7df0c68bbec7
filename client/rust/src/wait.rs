//! Wait for jobs to finish.

use std::time::Duration;

use howdah_proto::v1 as proto;
use tonic::Streaming;

use crate::{Client, Result, time};

/// Jobs as they finish, each once.
#[derive(Debug)]
pub struct EndedJobs(Streaming<proto::WaitJobsResponse>);

impl EndedJobs {
    /// The next job that has finished or died, with its result; `None`: that was the last. An error if the time is
    /// over first, or a job never existed.
    pub async fn next(&mut self) -> Result<Option<proto::Job>> {
        Ok(self.0.message().await?.and_then(|answer| answer.job))
    }
}

impl Client {
    /// Waits for jobs to finish or die, for `timeout` (at most a day) in all; those that have are told at once.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use howdah_client::NewJob;
    /// # async fn f(client: howdah_client::Client) -> howdah_client::Result<()> {
    /// let question = client.enqueue(NewJob::new("text.upper").payload("hello")).await?;
    /// let mut ended = client.wait_jobs([question.id], Duration::from_secs(30)).await?;
    /// while let Some(job) = ended.next().await? {
    ///     println!("{:?}: {:?}", job.state(), job.result);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn wait_jobs(&self, ids: impl IntoIterator<Item = i64>, timeout: Duration) -> Result<EndedJobs> {
        let request = proto::WaitJobsRequest { ids: ids.into_iter().collect(), timeout: Some(time::to_proto(timeout)) };
        Ok(EndedJobs(self.jobs().wait_jobs(request).await?.into_inner()))
    }
}
