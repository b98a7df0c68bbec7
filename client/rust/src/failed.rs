//! Failed and finished jobs: lists failed jobs in groups, retries and discards them, runs finished jobs again; and cancels jobs
//! by type.

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{Tries, rpc},
    enqueue::new_request_key,
};

impl Client {
    /// Retries dead and scheduled jobs now or at a given time. Dead jobs get all their attempts again, scheduled ones keep
    /// the remaining ones. A call for a type handles up to 10,000 jobs: repeat it with the returned page token. If the
    /// connection breaks, the call is repeated, and the response lacks the jobs of the first attempt.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, proto::{JobFilter, RetryJobsRequest}};
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let filter = JobFilter {
    ///     task_type: "email.send".into(),
    ///     error_group: "no such host (exit status #)".into(),
    ///     ..Default::default()
    /// };
    /// let mut request = RetryJobsRequest { filter: Some(filter), ..Default::default() };
    /// loop {
    ///     let answer = client.retry_jobs(request.clone()).await?;
    ///     println!("retrying {} jobs", answer.retried_ids.len());
    ///     if answer.next_page_token.is_empty() {
    ///         break;
    ///     }
    ///     request.page_token = answer.next_page_token;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn retry_jobs(&self, request: proto::RetryJobsRequest) -> Result<proto::RetryJobsResponse> {
        rpc!(self.jobs().retry_jobs(request))
    }

    /// Makes up to 10,000 dead and scheduled jobs run now, and returns the ids of the jobs that run again. A dead job whose key
    /// another job holds stays dead. Repeated like [`retry_jobs`](Self::retry_jobs).
    pub async fn retry_jobs_by_id(&self, ids: impl IntoIterator<Item = i64>) -> Result<Vec<i64>> {
        let filter = proto::JobFilter { ids: ids.into_iter().collect(), ..Default::default() };
        let request = proto::RetryJobsRequest { filter: Some(filter), ..Default::default() };
        Ok(self.retry_jobs(request).await?.retried_ids)
    }

    /// Moves up to 10,000 dead jobs to history, as discarded, and returns the ids of the jobs that were dead.
    pub async fn discard_jobs_by_id(&self, ids: impl IntoIterator<Item = i64>) -> Result<Vec<i64>> {
        let filter = proto::JobFilter { ids: ids.into_iter().collect(), ..Default::default() };
        let request = proto::DiscardJobsRequest { filter: Some(filter), ..Default::default() };
        Ok(self.discard_jobs(request).await?.discarded_ids)
    }

    /// Runs finished jobs again: enqueues a copy of each as a new job. The response has a result for each id: the new id, or why
    /// the job was not run again. Retries like [`enqueue`](Client::enqueue), with one request key, which the client chooses if the
    /// request has none.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, proto::{RerunJobsRequest, RerunOutcome}};
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let request = RerunJobsRequest { ids: vec![17, 18], ..Default::default() };
    /// for job in client.rerun_jobs(request).await?.jobs {
    ///     match job.outcome() {
    ///         RerunOutcome::New => println!("job {} runs again as {}", job.id, job.new_id),
    ///         _ => println!("job {}: {}", job.id, job.problem),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn rerun_jobs(&self, mut request: proto::RerunJobsRequest) -> Result<proto::RerunJobsResponse> {
        if request.request_key.is_empty() {
            request.request_key = new_request_key();
        }
        self.call("run jobs again", Tries::UntilDeadline, request, |client, request| async move {
            client.jobs().rerun_jobs(request).await
        })
        .await
    }

    /// Moves dead jobs to history, as discarded. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs) does.
    pub async fn discard_jobs(&self, request: proto::DiscardJobsRequest) -> Result<proto::DiscardJobsResponse> {
        rpc!(self.jobs().discard_jobs(request))
    }

    /// Cancels jobs by id, or by type, state, error group and conditions. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs)
    /// does. For ids alone, use [`cancel_jobs`](Self::cancel_jobs).
    pub async fn cancel_jobs_by(&self, request: proto::CancelJobsRequest) -> Result<proto::CancelJobsResponse> {
        rpc!(self.jobs().cancel_jobs(request))
    }

    /// Groups failed jobs by their last error, the largest groups first; for one type, or for all.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, proto::ListErrorGroupsRequest};
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// for group in client.list_error_groups(ListErrorGroupsRequest::default()).await?.groups {
    ///     println!("{}: {} dead of {}", group.task_type, group.dead_count, group.error_group);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list_error_groups(
        &self,
        request: proto::ListErrorGroupsRequest,
    ) -> Result<proto::ListErrorGroupsResponse> {
        rpc!(self.jobs().list_error_groups(request))
    }
}
