//! Reads, cancels, reprioritizes, retries and discards jobs, one by one or in bulk operations.

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{call, calls, found, pages},
    enqueue::new_request_key,
};

impl Client {
    /// Gets a job by id, with payload, result and failures. `None` if the job never existed, or is no longer kept.
    pub async fn get_job(&self, id: i64) -> Result<Option<proto::Job>> {
        let answer = found(call!(Read self.jobs().get_job(proto::GetJobRequest { id })))?;
        Ok(answer.and_then(|answer| answer.job))
    }

    /// Explains why a job does not run, or how it ended; `None` if it does not exist.
    pub async fn explain_job(&self, id: i64) -> Result<Option<proto::ExplainJobResponse>> {
        found(call!(Read self.jobs().explain_job(proto::ExplainJobRequest { id })))
    }

    calls! {
        /// Lists one page of the jobs of a type.
        fn list_jobs(request: proto::ListJobsRequest) -> proto::ListJobsResponse = Read jobs.list_jobs(request);

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
        fn search_jobs(request: proto::SearchJobsRequest) -> proto::SearchJobsResponse = Read jobs.search_jobs(request);

        /// Groups failed jobs by their last error, the largest groups first; for one type, or for all.
        fn list_error_groups(request: proto::ListErrorGroupsRequest) -> proto::ListErrorGroupsResponse =
            Read jobs.list_error_groups(request);

        /// Cancels jobs by id, or by type, state, error group and conditions. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs)
        /// does. For ids alone, use [`cancel_jobs`](Self::cancel_jobs).
        fn cancel_jobs_by(request: proto::CancelJobsRequest) -> proto::CancelJobsResponse = Change jobs.cancel_jobs(request);

        /// Ends the leases of jobs by id, or by type and conditions. A call handles up to 10,000 jobs, as
        /// [`retry_jobs`](Self::retry_jobs) does. For ids alone, use [`end_leases`](Self::end_leases).
        fn end_leases_by(request: proto::EndLeasesRequest) -> proto::EndLeasesResponse = Change jobs.end_leases(request);

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
        fn retry_jobs(request: proto::RetryJobsRequest) -> proto::RetryJobsResponse = Change jobs.retry_jobs(request);

        /// Moves dead jobs to history, as discarded. A call handles up to 10,000 jobs, as [`retry_jobs`](Self::retry_jobs) does.
        fn discard_jobs(request: proto::DiscardJobsRequest) -> proto::DiscardJobsResponse = Change jobs.discard_jobs(request);

        /// Counts the jobs that a bulk operation would change, and returns three of them as examples.
        fn preview_bulk(spec: proto::BulkSpec) -> proto::PreviewBulkResponse =
            Read bulks.preview_bulk(proto::PreviewBulkRequest { spec: Some(spec) });

        /// Starts a bulk operation, and returns it. If the connection breaks, the call is repeated without starting a second
        /// operation.
        ///
        /// ```no_run
        /// # use howdah_client::{Client, proto::{BulkOperation, BulkSpec}};
        /// # async fn f(client: Client) -> howdah_client::Result<()> {
        /// let mut spec = BulkSpec { task_type: "email.send".into(), ..BulkSpec::default() };
        /// spec.set_operation(BulkOperation::Retry);
        /// let bulk = client.start_bulk(spec).await?;
        /// println!("bulk operation {} retries about {} jobs", bulk.id, bulk.selected_count);
        /// # Ok(()) }
        /// ```
        fn start_bulk(spec: proto::BulkSpec) -> proto::Bulk =
            Change bulks.start_bulk(proto::StartBulkRequest { spec: Some(spec), request_key: new_request_key() }).bulk;

        /// Pauses a bulk operation, and returns it.
        fn pause_bulk(id: i64) -> proto::Bulk = Change bulks.pause_bulk(proto::PauseBulkRequest { id }).bulk;

        /// Resumes a paused bulk operation, and returns it.
        fn resume_bulk(id: i64) -> proto::Bulk = Change bulks.resume_bulk(proto::ResumeBulkRequest { id }).bulk;

        /// Cancels a bulk operation, and returns it. Jobs that it has changed stay changed.
        fn cancel_bulk(id: i64) -> proto::Bulk = Change bulks.cancel_bulk(proto::CancelBulkRequest { id }).bulk;

        /// Returns a bulk operation with its progress.
        fn get_bulk(id: i64) -> proto::Bulk = Read bulks.get_bulk(proto::GetBulkRequest { id }).bulk;
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
        Ok(self.cancel_jobs_by(request).await?.cancelled_ids)
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

    /// Changes the priority of up to 10,000 unfinished jobs, and returns the ids of the jobs that now have it. Jobs that are
    /// finished or dead, or never existed, are not returned.
    pub async fn reprioritize_jobs(&self, ids: impl IntoIterator<Item = i64>, priority: i32) -> Result<Vec<i64>> {
        let ids: Vec<i64> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        let request = proto::ReprioritizeJobsRequest { ids, priority, ..Default::default() };
        Ok(call!(Change self.jobs().reprioritize_jobs(request))?.reprioritized_ids)
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
            let page = call!(Change self.jobs().reprioritize_jobs(request.clone()))?;
            jobs += page.job_count;
            if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
                return Ok(jobs);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Makes up to 10,000 dead and scheduled jobs run now, and returns the ids of the jobs that run again. A dead job whose key
    /// another job holds stays dead. Repeated like [`retry_jobs`](Self::retry_jobs).
    pub async fn retry_jobs_by_id(&self, ids: impl IntoIterator<Item = i64>) -> Result<Vec<i64>> {
        let filter = proto::JobFilter { ids: ids.into_iter().collect(), ..Default::default() };
        let request = proto::RetryJobsRequest { filter: Some(filter), ..Default::default() };
        Ok(self.retry_jobs(request).await?.retried_ids)
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
        call!(Keyed self.jobs().rerun_jobs(request))
    }

    /// Lists bulk operations, newest first. Ignores `page_size` and `page_token` of the request: fetches up to `at_most`
    /// operations, in as many pages as needed.
    pub async fn list_bulks(&self, request: proto::ListBulksRequest, at_most: usize) -> Result<Vec<proto::Bulk>> {
        pages!(self.bulks().list_bulks(request).bulks, at_most)
    }
}
