//! Reads, cancels, reprioritizes, retries and discards jobs.

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{change, found, read},
    enqueue::new_request_key,
};

impl Client {
    /// Gets a job by id, with payload, result and failures. `None` if the job never existed, or is no longer kept.
    pub async fn get_job(&self, id: i64) -> Result<Option<proto::Job>> {
        let answer = found(read!(self.jobs().get_job(proto::GetJobRequest { id })))?;
        Ok(answer.and_then(|answer| answer.job))
    }

    /// Explains why a job does not run, or how it ended; `None` if it does not exist.
    pub async fn explain_job(&self, id: i64) -> Result<Option<proto::ExplainJobResponse>> {
        found(read!(self.jobs().explain_job(proto::ExplainJobRequest { id })))
    }

    /// Lists one page of the jobs of a type.
    pub async fn list_jobs(&self, request: proto::ListJobsRequest) -> Result<proto::ListJobsResponse> {
        read!(self.jobs().list_jobs(request))
    }

    /// Returns one page of a search. If the response has a `next_page_token`, repeat the call with it; otherwise the search
    /// is complete.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, proto::{SearchJobsRequest, search_jobs_request::Query}};
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let query = Some(Query::Key("order-4711".into()));
    /// let request = SearchJobsRequest { query, task_type: "order.ship".into(), ..Default::default() };
    /// for job in client.search_jobs(request).await?.jobs {
    ///     println!("{} is {:?}", job.id, job.state());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn search_jobs(&self, request: proto::SearchJobsRequest) -> Result<proto::SearchJobsResponse> {
        read!(self.jobs().search_jobs(request))
    }

    /// Groups failed jobs by their last error, the largest groups first; for one type, or for all.
    pub async fn list_error_groups(
        &self,
        request: proto::ListErrorGroupsRequest,
    ) -> Result<proto::ListErrorGroupsResponse> {
        read!(self.jobs().list_error_groups(request))
    }

    /// Cancels up to 10,000 jobs, and returns the ids of those that this call cancelled. The others were finished or never existed.
    /// Workers of running jobs are told to stop. If the connection breaks, the call is repeated, and the response lacks the jobs
    /// cancelled by the first attempt.
    pub async fn cancel_jobs(&self, ids: impl IntoIterator<Item = i64>) -> Result<Vec<i64>> {
        let ids: Vec<i64> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        let request = proto::CancelJobsRequest { ids, ..Default::default() };
        Ok(change!(self.jobs().cancel_jobs(request))?.cancelled_ids)
    }

    /// Cancels jobs by id, or by type, state, error group and conditions. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs)
    /// does. For ids alone, use [`cancel_jobs`](Self::cancel_jobs).
    pub async fn cancel_jobs_by(&self, request: proto::CancelJobsRequest) -> Result<proto::CancelJobsResponse> {
        change!(self.jobs().cancel_jobs(request))
    }

    /// Ends the leases of up to 10,000 running jobs, and returns the ids of those that a worker held. With an error, the attempts
    /// count as failed, and the retry policies apply; without one they do not count, and the jobs are ready again. If the
    /// connection breaks, the call is repeated, and the response lacks the jobs of the first attempt.
    pub async fn end_leases(&self, ids: impl IntoIterator<Item = i64>, error: Option<String>) -> Result<Vec<i64>> {
        let ids: Vec<i64> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        let filter = Some(proto::JobFilter { ids, ..proto::JobFilter::default() });
        let request = proto::EndLeasesRequest { filter, error, ..proto::EndLeasesRequest::default() };
        Ok(self.end_leases_by(request).await?.ended_ids)
    }

    /// Ends the leases of jobs by id, or by type and conditions. A call handles up to 10,000 jobs, as
    /// [`retry_jobs`](Self::retry_jobs) does. For ids alone, use [`end_leases`](Self::end_leases).
    pub async fn end_leases_by(&self, request: proto::EndLeasesRequest) -> Result<proto::EndLeasesResponse> {
        change!(self.jobs().end_leases(request))
    }

    /// Changes the priority of up to 10,000 unfinished jobs, and returns the ids of the jobs that now have it. Jobs that are
    /// finished or dead, or never existed, are not returned.
    pub async fn reprioritize_jobs(&self, ids: impl IntoIterator<Item = i64>, priority: i32) -> Result<Vec<i64>> {
        let ids: Vec<i64> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        let request = proto::ReprioritizeJobsRequest { ids, priority, ..Default::default() };
        Ok(self.reprioritize_page(request).await?.reprioritized_ids)
    }

    /// Changes the priority of the jobs of a type that wait for a worker and meet all conditions; returns the number of changed
    /// jobs. Makes a call for every 10,000 jobs, each with the request timeout.
    pub async fn reprioritize_type(
        &self,
        task_type: impl Into<String>,
        conditions: Option<proto::JobConditions>,
        priority: i32,
    ) -> Result<i64> {
        let task_type = task_type.into();
        let mut request = proto::ReprioritizeJobsRequest { task_type, priority, conditions, ..Default::default() };
        let mut jobs = 0;
        loop {
            let page = self.reprioritize_page(request.clone()).await?;
            jobs += page.job_count;
            if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
                return Ok(jobs);
            }
            request.page_token = page.next_page_token;
        }
    }

    async fn reprioritize_page(
        &self,
        request: proto::ReprioritizeJobsRequest,
    ) -> Result<proto::ReprioritizeJobsResponse> {
        change!(self.jobs().reprioritize_jobs(request))
    }

    /// Makes up to 10,000 dead and scheduled jobs run now, and returns the ids of the jobs that run again. A dead job whose key
    /// another job holds stays dead. Repeated like [`retry_jobs`](Self::retry_jobs).
    pub async fn retry_jobs_by_id(&self, ids: impl IntoIterator<Item = i64>) -> Result<Vec<i64>> {
        let filter = proto::JobFilter { ids: ids.into_iter().collect(), ..Default::default() };
        let request = proto::RetryJobsRequest { filter: Some(filter), ..Default::default() };
        Ok(self.retry_jobs(request).await?.retried_ids)
    }

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
        change!(self.jobs().retry_jobs(request))
    }

    /// Moves dead jobs to history, as discarded. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs) does.
    pub async fn discard_jobs(&self, request: proto::DiscardJobsRequest) -> Result<proto::DiscardJobsResponse> {
        change!(self.jobs().discard_jobs(request))
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
        change!(self.jobs().rerun_jobs(request), UntilDeadline)
    }
}
