//! Jobs looked at, waited for, cancelled; settings of task types and of the cluster.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use howdah_proto::v1::{
    CancelJobsRequest, ClusterSettings, GetJobRequest, Job, JobFilter, JobState, PauseLimitKeyRequest,
    ResumeLimitKeyRequest, RetryJobsRequest, TaskTypeSettings, UpdateSettingsRequest, UpdateTaskTypeRequest,
    WaitJobsRequest,
};
use prost_types::FieldMask;
use tonic::Status;

use super::{JobOptions as _, PATIENCE, Refusal, Service, eventually, soon, wire};

impl Service {
    /// A job as an operator sees it.
    pub async fn job(&self, id: i64) -> Job {
        let answer = soon("an answer", self.jobs().get_job(GetJobRequest { id })).await;
        answer.expect("the job").into_inner().job.expect("a job")
    }

    /// Where it is now.
    pub async fn state(&self, id: i64) -> JobState {
        self.job(id).await.state()
    }

    /// Waits until it has finished or is dead.
    pub async fn wait(&self, id: i64) -> Job {
        let request = WaitJobsRequest { ids: vec![id], timeout: Some(wire(PATIENCE)) };
        let mut ends = soon("an answer", self.jobs().wait_jobs(request)).await.expect("wait").into_inner();
        let ended = soon("the end of the job", ends.message()).await.expect("wait").expect("an end");
        ended.job.expect("a job")
    }

    /// Waits until a job is in a state. What has ended is told; for the others it asks.
    pub async fn until_state(&self, id: i64, state: JobState) {
        let name = state.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase();
        let sql = format!("SELECT EXISTS (SELECT FROM howdah.job WHERE id = {id} AND state = '{name}')");
        self.until(&format!("{name} of job {id}"), &sql).await;
    }

    /// Cancels jobs; those that this cancelled.
    pub async fn cancel(&self, ids: &[i64]) -> Vec<i64> {
        let request = CancelJobsRequest { ids: ids.to_vec(), ..CancelJobsRequest::default() };
        let answer = soon("an answer", self.jobs().cancel_jobs(request)).await;
        answer.expect("cancel").into_inner().cancelled_ids
    }

    /// Sets jobs forward, to now; those that this did.
    pub async fn retry(&self, ids: &[i64]) -> Vec<i64> {
        let filter = Some(JobFilter { ids: ids.to_vec(), ..JobFilter::default() });
        let request = RetryJobsRequest { filter, ..RetryJobsRequest::default() };
        soon("an answer", self.jobs().retry_jobs(request)).await.expect("retry").into_inner().retried_ids
    }

    /// Replaces the settings of a task type. Awaited, they are set, and given back as they are stored.
    pub fn set(&self, task_type: &str, settings: TaskTypeSettings) -> SetType {
        let request = UpdateTaskTypeRequest { task_type: task_type.into(), settings: Some(settings) };
        SetType { service: self.clone(), request }
    }

    /// Waits until another broker goes by what was set here: within a second, unless the machine is slow, and without
    /// a signal. It reads all settings at once, so when it refuses a payload by one that is set now, it has read the
    /// others too. Nothing is stored either way: the job is to run after one that there is not.
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

    /// Changes settings of the cluster: those that are set. Awaited, they hold here and in SQL, and all are given back.
    pub fn set_cluster(&self, settings: ClusterSettings) -> SetCluster {
        let request = UpdateSettingsRequest { settings: Some(settings), update_mask: None };
        SetCluster { service: self.clone(), request }
    }

    pub async fn pause_key(&self, task_type: &str, limit_key: &str) {
        let (task_type, limit_key) = (task_type.into(), limit_key.into());
        let request = PauseLimitKeyRequest { task_type, limit_key, duration: None };
        soon("an answer", self.task_types().pause_limit_key(request)).await.expect("pause");
    }

    pub async fn resume_key(&self, task_type: &str, limit_key: &str) {
        let request = ResumeLimitKeyRequest { task_type: task_type.into(), limit_key: limit_key.into() };
        soon("an answer", self.task_types().resume_limit_key(request)).await.expect("resume");
    }
}

/// Settings to be.
pub struct SetType {
    service: Service,
    request: UpdateTaskTypeRequest,
}

impl SetType {
    /// Why they were refused.
    pub async fn refused(self) -> Refusal {
        self.answer().await.expect_err("a refusal").into()
    }

    async fn answer(self) -> Result<TaskTypeSettings, Status> {
        let answer = soon("an answer", self.service.task_types().update_task_type(self.request)).await?;
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

/// Settings of the cluster to be.
pub struct SetCluster {
    service: Service,
    request: UpdateSettingsRequest,
}

impl SetCluster {
    /// Changes these fields, and no others: those that are unset go back to their defaults.
    pub fn only(mut self, fields: &[&str]) -> Self {
        let paths = fields.iter().copied().map(str::to_owned).collect();
        self.request.update_mask = Some(FieldMask { paths });
        self
    }

    /// Why they were refused.
    pub async fn refused(self) -> Refusal {
        self.answer().await.expect_err("a refusal").into()
    }

    async fn answer(self) -> Result<ClusterSettings, Status> {
        let answer = soon("an answer", self.service.settings().update_settings(self.request)).await?;
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
