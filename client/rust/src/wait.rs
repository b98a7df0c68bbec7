//! Waits until jobs have ended.

use std::time::Duration;

use howdah_proto::v1 as proto;
use tonic::Streaming;

use crate::{Client, Result, time};

/// Jobs as they end, each once.
#[derive(Debug)]
pub struct EndedJobs(Streaming<proto::WaitJobsResponse>);

impl EndedJobs {
    /// The next job that is finished or dead, with its result. `None`: that was the last. It is an error if the timeout
    /// passes before, or if a job does not exist.
    pub async fn next(&mut self) -> Result<Option<proto::Job>> {
        Ok(self.0.message().await?.and_then(|answer| answer.job))
    }
}

impl Client {
    /// Waits until jobs are finished or dead, for at most `timeout` (up to a day). Jobs that have ended already come at
    /// once.
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
