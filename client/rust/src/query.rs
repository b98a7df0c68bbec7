//! Reads jobs, task types and the storage; cancels and reprioritizes jobs.

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{all_pages, found, rpc},
};

impl Client {
    /// Gets a job by id, with payload, result and failures. `None` if the job never existed, or is no longer kept.
    pub async fn get_job(&self, id: i64) -> Result<Option<proto::Job>> {
        let answer = found(rpc!(self.jobs().get_job(proto::GetJobRequest { id })))?;
        Ok(answer.and_then(|answer| answer.job))
    }

    /// Explains why a job does not run, or how it ended; `None` if it does not exist.
    pub async fn explain_job(&self, id: i64) -> Result<Option<proto::ExplainJobResponse>> {
        found(rpc!(self.jobs().explain_job(proto::ExplainJobRequest { id })))
    }

    /// Lists one page of the jobs of a type.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, proto::{JobState, ListJobsRequest}};
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let mut request = ListJobsRequest { task_type: "email.send".into(), ..Default::default() };
    /// request.set_state(JobState::Dead);
    /// for job in client.list_jobs(request).await?.jobs {
    ///     println!("{} failed {} times", job.id, job.attempt);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list_jobs(&self, request: proto::ListJobsRequest) -> Result<proto::ListJobsResponse> {
        rpc!(self.jobs().list_jobs(request))
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
        rpc!(self.jobs().search_jobs(request))
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
        Ok(rpc!(self.jobs().cancel_jobs(request))?.cancelled_ids)
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
        rpc!(self.jobs().end_leases(request))
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

    /// Changes the priority of all jobs of a type that wait for a worker; returns the number of changed jobs. For a type with
    /// millions of jobs this makes several calls, each with the request timeout.
    pub async fn reprioritize_type(&self, task_type: impl Into<String>, priority: i32) -> Result<i64> {
        let task_type = task_type.into();
        let mut request = proto::ReprioritizeJobsRequest { task_type, priority, ..Default::default() };
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
        rpc!(self.jobs().reprioritize_jobs(request))
    }

    /// Lists all task types by name, with their numbers of jobs.
    pub async fn list_task_types(&self) -> Result<Vec<proto::TaskType>> {
        all_pages(|page_token| async move {
            let request = proto::ListTaskTypesRequest { page_token, ..Default::default() };
            let page = self.task_type_page(request).await?;
            Ok((page.task_types, page.next_page_token))
        })
        .await
    }

    /// Gets one task type with its numbers of jobs; `None` if it does not exist.
    pub async fn get_task_type(&self, task_type: impl Into<String>) -> Result<Option<proto::TaskType>> {
        let request =
            proto::ListTaskTypesRequest { task_type: task_type.into(), ..proto::ListTaskTypesRequest::default() };
        let page = self.task_type_page(request).await?;
        Ok(page.task_types.into_iter().next())
    }

    /// Gets the storage health: dead rows, and what prevents Postgres from removing them. `None` if the broker is too old to
    /// report it, or its database role may not read it.
    ///
    /// ```no_run
    /// # async fn f(client: howdah_client::Client) -> howdah_client::Result<()> {
    /// let storage = client.storage_health().await?.unwrap_or_default();
    /// for table in &storage.tables {
    ///     println!("{}: {} dead rows", table.name, table.dead_rows);
    /// }
    /// if let Some(holder) = &storage.oldest_snapshot {
    ///     println!("the oldest snapshot is of pid {}", holder.pid);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn storage_health(&self) -> Result<Option<proto::StorageHealth>> {
        // The broker adds the storage health to the first page of a list of all types, so a page size of 1 is enough.
        let request = proto::ListTaskTypesRequest { page_size: 1, ..proto::ListTaskTypesRequest::default() };
        Ok(self.task_type_page(request).await?.storage)
    }

    /// Reads the statistics of a type by period, or the totals of all types.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, proto::GetStatsRequest};
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let request = GetStatsRequest { task_type: "email.send".into(), ..GetStatsRequest::default() };
    /// for hour in client.get_stats(request).await?.stats {
    ///     println!("{} succeeded, {} failed", hour.succeeded_count, hour.failed_count);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn get_stats(&self, request: proto::GetStatsRequest) -> Result<proto::GetStatsResponse> {
        rpc!(self.task_types().get_stats(request))
    }

    /// Replaces the settings of a task type, and creates it if it does not exist.
    pub async fn update_task_type(
        &self,
        task_type: impl Into<String>,
        settings: proto::TaskTypeSettings,
    ) -> Result<proto::TaskTypeSettings> {
        let request = proto::UpdateTaskTypeRequest { task_type: task_type.into(), settings: Some(settings) };
        Ok(rpc!(self.task_types().update_task_type(request))?.settings.unwrap_or_default())
    }

    /// Replaces the settings of a task type, and creates it if it does not exist. Programs call this at each start: it is
    /// idempotent, and ignores `paused`, so that a restart does not resume what an operator has paused.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, RetryPolicy, proto::TaskTypeSettings};
    /// # use std::time::Duration;
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let retries = RetryPolicy::list([Duration::from_secs(5), Duration::from_mins(5)]);
    /// let settings = TaskTypeSettings { max_running: 2, retry_policy: Some(retries.into_proto()), ..Default::default() };
    /// client.apply_task_type("report.make", settings).await
    /// # }
    /// ```
    pub async fn apply_task_type(&self, task_type: impl Into<String>, settings: proto::TaskTypeSettings) -> Result<()> {
        let keep_pause =
            |before: proto::TaskTypeSettings| proto::TaskTypeSettings { paused: before.paused, ..settings };
        self.change_task_type(task_type.into(), keep_pause).await
    }

    /// Stops the delivery of the jobs of a type at all brokers until [`resume_task_type`](Self::resume_task_type). Running jobs
    /// continue, and jobs can be enqueued.
    pub async fn pause_task_type(&self, task_type: impl Into<String>) -> Result<()> {
        self.change_task_type(task_type.into(), |before| proto::TaskTypeSettings { paused: true, ..before }).await
    }

    /// Ends a pause.
    pub async fn resume_task_type(&self, task_type: impl Into<String>) -> Result<()> {
        self.change_task_type(task_type.into(), |before| proto::TaskTypeSettings { paused: false, ..before }).await
    }

    /// Reads the settings, changes them and stores them. The last of several concurrent changes wins.
    async fn change_task_type(
        &self,
        task_type: String,
        change: impl FnOnce(proto::TaskTypeSettings) -> proto::TaskTypeSettings,
    ) -> Result<()> {
        let before = self.get_task_type(&task_type).await?.and_then(|found| found.settings).unwrap_or_default();
        self.update_task_type(task_type, change(before)).await.map(drop)
    }

    /// Lists one page of the task types by name. With `last_count` the broker returns the counts that it determined last,
    /// which makes frequent calls cheap.
    pub async fn task_type_page(&self, request: proto::ListTaskTypesRequest) -> Result<proto::ListTaskTypesResponse> {
        rpc!(self.task_types().list_task_types(request))
    }
}
