//! Task types: numbers, settings and limit keys; and the storage.

use std::time::Duration;

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{change, pages, read},
    time,
};

impl Client {
    /// Lists all task types by name, with their numbers of jobs.
    pub async fn list_task_types(&self) -> Result<Vec<proto::TaskType>> {
        pages!(self.task_types().list_task_types(proto::ListTaskTypesRequest::default()).task_types)
    }

    /// Lists one page of the task types by name. With `last_count` the broker returns the counts that it determined last,
    /// which makes frequent calls cheap.
    pub async fn task_type_page(&self, request: proto::ListTaskTypesRequest) -> Result<proto::ListTaskTypesResponse> {
        read!(self.task_types().list_task_types(request))
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
    pub async fn get_stats(&self, request: proto::GetStatsRequest) -> Result<proto::GetStatsResponse> {
        read!(self.task_types().get_stats(request))
    }

    /// Replaces the settings of a task type, and creates it if it does not exist.
    pub async fn update_task_type(
        &self,
        task_type: impl Into<String>,
        settings: proto::TaskTypeSettings,
    ) -> Result<proto::TaskTypeSettings> {
        let request = proto::UpdateTaskTypeRequest { task_type: task_type.into(), settings: Some(settings) };
        Ok(change!(self.task_types().update_task_type(request))?.settings.unwrap_or_default())
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

    /// Lists the limit keys of a task type that have waiting jobs, are paused, or have their own limit.
    pub async fn list_limit_keys(&self, task_type: impl Into<String>) -> Result<Vec<proto::LimitKey>> {
        let request = proto::ListLimitKeysRequest { task_type: task_type.into(), ..Default::default() };
        pages!(self.task_types().list_limit_keys(request).limit_keys)
    }

    /// Pauses a limit key of a task type. Without a duration it is paused until it is resumed.
    pub async fn pause_limit_key(
        &self,
        task_type: impl Into<String>,
        key: impl Into<String>,
        duration: Option<Duration>,
    ) -> Result<()> {
        let request = proto::PauseLimitKeyRequest {
            task_type: task_type.into(),
            limit_key: key.into(),
            duration: duration.map(time::to_proto),
        };
        change!(self.task_types().pause_limit_key(request)).map(drop)
    }

    /// Sets how many jobs of a limit key may run at once. 0: as many as the task type allows for each key.
    pub async fn update_limit_key(
        &self,
        task_type: impl Into<String>,
        key: impl Into<String>,
        max_running: u32,
    ) -> Result<()> {
        let request = proto::UpdateLimitKeyRequest { task_type: task_type.into(), limit_key: key.into(), max_running };
        change!(self.task_types().update_limit_key(request)).map(drop)
    }

    /// Resumes a limit key of a task type.
    pub async fn resume_limit_key(&self, task_type: impl Into<String>, key: impl Into<String>) -> Result<()> {
        let request = proto::ResumeLimitKeyRequest { task_type: task_type.into(), limit_key: key.into() };
        change!(self.task_types().resume_limit_key(request)).map(drop)
    }
}
