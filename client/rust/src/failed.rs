//! Failed jobs: lists them in groups, retries and discards them; and cancels jobs by type.

use howdah_proto::v1 as proto;

use crate::{Client, Result, call::Tries};

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
        self.call("retry jobs", Tries::EachEndpoint, request, |client, request| async move {
            client.jobs().retry_jobs(request).await
        })
        .await
    }

    /// Moves dead jobs to history, as discarded. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs) does.
    pub async fn discard_jobs(&self, request: proto::DiscardJobsRequest) -> Result<proto::DiscardJobsResponse> {
        self.call("discard jobs", Tries::EachEndpoint, request, |client, request| async move {
            client.jobs().discard_jobs(request).await
        })
        .await
    }

    /// Cancels jobs by id, or by type, state and error group. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs)
    /// does. For ids alone, use [`cancel_jobs`](Self::cancel_jobs).
    pub async fn cancel_jobs_by(&self, request: proto::CancelJobsRequest) -> Result<proto::CancelJobsResponse> {
        self.call("cancel jobs", Tries::EachEndpoint, request, |client, request| async move {
            client.jobs().cancel_jobs(request).await
        })
        .await
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
        self.call("list error groups", Tries::EachEndpoint, request, |client, request| async move {
            client.jobs().list_error_groups(request).await
        })
        .await
    }
}
