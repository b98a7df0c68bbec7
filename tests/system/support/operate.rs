//! Methods of tests that read, await and cancel jobs, and change settings of task types and of the cluster.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use howdah_proto::v1::{
    CancelJobsRequest, ClusterSettings, GetJobRequest, Job, JobFilter, JobState, PauseLimitKeyRequest, RerunJob,
    RerunJobsRequest, ResumeLimitKeyRequest, RetryJobsRequest, TaskTypeSettings, UpdateLimitKeyRequest,
    UpdateSettingsRequest, UpdateTaskTypeRequest, WaitJobsRequest,
};
use prost_types::FieldMask;
use tonic::Status;

use super::{JobOptions as _, PATIENCE, Refusal, Service, eventually, wire, with_timeout};

impl Service {
    /// Returns the job that `GetJob` returns for this id.
    pub async fn job(&self, id: i64) -> Job {
        let answer = with_timeout("an answer", self.jobs().get_job(GetJobRequest { id })).await;
        answer.expect("the job").into_inner().job.expect("a job")
    }

    pub async fn state(&self, id: i64) -> JobState {
        self.job(id).await.state()
    }

    /// Waits until the job has finished or is dead.
    pub async fn wait(&self, id: i64) -> Job {
        let request = WaitJobsRequest { ids: vec![id], timeout: Some(wire(PATIENCE)) };
        let mut ends = with_timeout("an answer", self.jobs().wait_jobs(request)).await.expect("wait").into_inner();
        let ended = with_timeout("the end of the job", ends.message()).await.expect("wait").expect("an end");
        ended.job.expect("a job")
    }

    /// Waits until a job is in this state. Polls the database.
    pub async fn until_state(&self, id: i64, state: JobState) {
        let name = state.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase();
        let sql = format!("SELECT EXISTS (SELECT FROM howdah.job WHERE id = {id} AND state = '{name}')");
        self.until(&format!("{name} of job {id}"), &sql).await;
    }

    /// Cancels jobs, and returns the ids of the jobs that were cancelled.
    pub async fn cancel(&self, ids: &[i64]) -> Vec<i64> {
        let request = CancelJobsRequest { ids: ids.to_vec(), ..CancelJobsRequest::default() };
        let answer = with_timeout("an answer", self.jobs().cancel_jobs(request)).await;
        answer.expect("cancel").into_inner().cancelled_ids
    }

    /// Makes jobs due now, and returns the ids of the jobs that were changed.
    pub async fn retry(&self, ids: &[i64]) -> Vec<i64> {
        let filter = Some(JobFilter { ids: ids.to_vec(), ..JobFilter::default() });
        let request = RetryJobsRequest { filter, ..RetryJobsRequest::default() };
        with_timeout("an answer", self.jobs().retry_jobs(request)).await.expect("retry").into_inner().retried_ids
    }

    /// Runs finished jobs again. Returns a result for each job.
    pub async fn rerun(&self, request: RerunJobsRequest) -> Vec<RerunJob> {
        with_timeout("an answer", self.jobs().rerun_jobs(request)).await.expect("a rerun").into_inner().jobs
    }

    /// Replaces the settings of a task type. Awaiting the returned value returns the stored settings.
    pub fn set(&self, task_type: &str, settings: TaskTypeSettings) -> SetType {
        let request =
            UpdateTaskTypeRequest { task_type: task_type.into(), settings: Some(settings), update_mask: None };
        SetType { service: self.clone(), request }
    }

    /// Waits until another broker applies the settings made at this broker. Sets a payload limit on a new task type, and
    /// enqueues there until the limit is enforced: a broker reads all settings at once. No job is stored, because each depends
    /// on a job that does not exist.
    pub async fn settings_reach(&self, other: &Self) {
        let probe = format!("probe/{}", rand::random::<u64>());
        self.set(&probe, TaskTypeSettings { max_payload_bytes: 1, ..TaskTypeSettings::default() }).await;
        eventually("the settings at the other broker", async || {
            let refused = other.enqueue(&*probe).payload("xx").after(&[1_000_000_000]).refused().await;
            assert!(["jobs[0].payload", "jobs[0].after"].contains(&&*refused.field), "{refused}");
            refused.field == "jobs[0].payload"
        })
        .await;
    }

    /// Changes the cluster settings that are set in `settings`. Awaiting the returned value returns all settings, which then
    /// apply to this broker and to SQL.
    pub fn set_cluster(&self, settings: ClusterSettings) -> SetCluster {
        let request = UpdateSettingsRequest { settings: Some(settings), update_mask: None };
        SetCluster { service: self.clone(), request }
    }

    pub async fn pause_key(&self, task_type: &str, limit_key: &str) {
        let (task_type, limit_key) = (task_type.into(), limit_key.into());
        let request = PauseLimitKeyRequest { task_type, limit_key, duration: None };
        with_timeout("an answer", self.task_types().pause_limit_key(request)).await.expect("pause");
    }

    /// Sets a limit for one limit key; 0 removes it.
    pub async fn limit_key(&self, task_type: &str, limit_key: &str, max_running: u32) {
        let (task_type, limit_key) = (task_type.into(), limit_key.into());
        let request = UpdateLimitKeyRequest { task_type, limit_key, max_running };
        with_timeout("an answer", self.task_types().update_limit_key(request)).await.expect("a limit");
    }

    pub async fn resume_key(&self, task_type: &str, limit_key: &str) {
        let request = ResumeLimitKeyRequest { task_type: task_type.into(), limit_key: limit_key.into() };
        with_timeout("an answer", self.task_types().resume_limit_key(request)).await.expect("resume");
    }
}

/// A change of a task type's settings, sent when it is awaited.
pub struct SetType {
    service: Service,
    request: UpdateTaskTypeRequest,
}

impl SetType {
    /// Sends the change, which must be refused, and returns the error.
    pub async fn refused(self) -> Refusal {
        self.answer().await.expect_err("a refusal").into()
    }

    async fn answer(self) -> Result<TaskTypeSettings, Status> {
        let answer = with_timeout("an answer", self.service.task_types().update_task_type(self.request)).await?;
        Ok(answer.into_inner().settings.expect("settings"))
    }
}

impl IntoFuture for SetType {
    type Output = TaskTypeSettings;
    type IntoFuture = Pin<Box<dyn Future<Output = TaskTypeSettings> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.answer().await.expect("settings") })
    }
}

/// A change of cluster settings, sent when it is awaited.
pub struct SetCluster {
    service: Service,
    request: UpdateSettingsRequest,
}

impl SetCluster {
    /// Changes exactly these fields. Fields without a value return to their defaults.
    pub fn only(mut self, fields: &[&str]) -> Self {
        let paths = fields.iter().copied().map(str::to_owned).collect();
        self.request.update_mask = Some(FieldMask { paths });
        self
    }

    /// Sends the change, which must be refused, and returns the error.
    pub async fn refused(self) -> Refusal {
        self.answer().await.expect_err("a refusal").into()
    }

    async fn answer(self) -> Result<ClusterSettings, Status> {
        let answer = with_timeout("an answer", self.service.settings().update_settings(self.request)).await?;
        Ok(answer.into_inner().settings.expect("settings"))
    }
}

impl IntoFuture for SetCluster {
    type Output = ClusterSettings;
    type IntoFuture = Pin<Box<dyn Future<Output = ClusterSettings> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.answer().await.expect("settings") })
    }
}
