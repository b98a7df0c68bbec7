//! The services for callers in this process, which is the page for operators. A call takes the way of one that came by gRPC: the
//! same rule, the same checks, the same permissions, the same audit.

mod by;
mod counted;

use std::time::Duration;

use howdah_proto::{
    Rpc,
    v1::{
        self, access_service_server::AccessService as _, bulk_service_server::BulkService as _,
        job_service_server::JobService as _, schedule_service_server::ScheduleService as _,
        task_type_service_server::TaskTypeService as _, worker_service_server::WorkerService as _,
    },
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    access_service::AccessService, bulk_service::BulkService, job_service::JobService,
    schedule_service::ScheduleService, task_type_service::TaskTypeService, worker_service::WorkerService,
};
use crate::{
    access::{Refusal, rule},
    broker::SharedBroker,
    error::Error,
};
pub(crate) use by::{By, Client};

/// How long a call may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// What those may call who may change nothing.
const READING: [Rpc; 15] = [
    Rpc::GetJob,
    Rpc::ListJobs,
    Rpc::SearchJobs,
    Rpc::ExplainJob,
    Rpc::ListErrorGroups,
    Rpc::ListTaskTypes,
    Rpc::GetStats,
    Rpc::ListWorkers,
    Rpc::ListLimitKeys,
    Rpc::PreviewBulk,
    Rpc::ListBulks,
    Rpc::GetSchedule,
    Rpc::ListSchedules,
    Rpc::ListTokens,
    Rpc::ListAudit,
];

/// The services.
pub(crate) struct Local {
    broker: SharedBroker,
    jobs: JobService,
    types: TaskTypeService,
    workers: WorkerService,
    schedules: ScheduleService,
    bulks: BulkService,
    access: AccessService,
}

impl Local {
    /// Those of this broker.
    pub(crate) fn new(broker: SharedBroker) -> Self {
        Self {
            jobs: JobService::new(broker.clone(), CancellationToken::new()),
            types: TaskTypeService::new(broker.clone()),
            workers: WorkerService::new(broker.clone()),
            schedules: ScheduleService::new(broker.clone()),
            bulks: BulkService::new(broker.clone()),
            access: AccessService::new(broker.clone()),
            broker,
        }
    }

    /// Makes a call, if the caller may. The answer holds memory until it is dropped, as it would until it is sent.
    async fn call<Q, A>(
        &self,
        rpc: Rpc,
        by: &By,
        message: Q,
        run: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<Response<A>, Status> {
        let answer = async {
            by.caller.check_rule(rule(rpc))?;
            if by.reads_only && !READING.contains(&rpc) {
                return Err(Error::Denied("this page changes nothing: the setting page is read-only".into()).into());
            }
            let request = by.request(message);
            tokio::time::timeout(WITHIN, run(request))
                .await
                .unwrap_or_else(|_| Err(Error::Deadline(format!("the call took longer than {WITHIN:?}")).into()))
        };
        let answer = answer.await;
        if let Err(status) = &answer {
            self.note(rpc.name(), by, status);
        }
        answer
    }

    /// Notes an answer that refuses the caller.
    fn note(&self, method: &str, by: &By, status: &Status) {
        self.broker.access.refusals.note(&Refusal {
            code: status.code(),
            problem: status.message(),
            principal: Some(by.caller.principal()),
            peer: by.peer.socket,
            method,
        });
    }
}

macro_rules! calls {
    ($($call:ident = $rpc:ident of $service:ident: $request:ident -> $answer:ident;)*) => {
        impl Local {
            $(
                #[doc = concat!("The call `", stringify!($rpc), "`.")]
                pub(crate) async fn $call(
                    &self,
                    by: &By,
                    request: v1::$request,
                ) -> Result<Response<v1::$answer>, Status> {
                    self.call(Rpc::$rpc, by, request, async |request| self.$service.$call(request).await).await
                }
            )*
        }
    };
}

calls! {
    get_job = GetJob of jobs: GetJobRequest -> GetJobResponse;
    explain_job = ExplainJob of jobs: ExplainJobRequest -> ExplainJobResponse;
    list_jobs = ListJobs of jobs: ListJobsRequest -> ListJobsResponse;
    search_jobs = SearchJobs of jobs: SearchJobsRequest -> SearchJobsResponse;
    list_error_groups = ListErrorGroups of jobs: ListErrorGroupsRequest -> ListErrorGroupsResponse;
    cancel_jobs = CancelJobs of jobs: CancelJobsRequest -> CancelJobsResponse;
    retry_jobs = RetryJobs of jobs: RetryJobsRequest -> RetryJobsResponse;
    end_leases = EndLeases of jobs: EndLeasesRequest -> EndLeasesResponse;
    discard_jobs = DiscardJobs of jobs: DiscardJobsRequest -> DiscardJobsResponse;
    reprioritize_jobs = ReprioritizeJobs of jobs: ReprioritizeJobsRequest -> ReprioritizeJobsResponse;
    update_task_type = UpdateTaskType of types: UpdateTaskTypeRequest -> UpdateTaskTypeResponse;
    get_stats = GetStats of types: GetStatsRequest -> GetStatsResponse;
    list_workers = ListWorkers of workers: ListWorkersRequest -> ListWorkersResponse;
    list_limit_keys = ListLimitKeys of types: ListLimitKeysRequest -> ListLimitKeysResponse;
    pause_limit_key = PauseLimitKey of types: PauseLimitKeyRequest -> PauseLimitKeyResponse;
    resume_limit_key = ResumeLimitKey of types: ResumeLimitKeyRequest -> ResumeLimitKeyResponse;
    get_schedule = GetSchedule of schedules: GetScheduleRequest -> GetScheduleResponse;
    list_schedules = ListSchedules of schedules: ListSchedulesRequest -> ListSchedulesResponse;
    pause_schedule = PauseSchedule of schedules: PauseScheduleRequest -> PauseScheduleResponse;
    resume_schedule = ResumeSchedule of schedules: ResumeScheduleRequest -> ResumeScheduleResponse;
    run_schedule = RunSchedule of schedules: RunScheduleRequest -> RunScheduleResponse;
    preview_bulk = PreviewBulk of bulks: PreviewBulkRequest -> PreviewBulkResponse;
    start_bulk = StartBulk of bulks: StartBulkRequest -> StartBulkResponse;
    pause_bulk = PauseBulk of bulks: PauseBulkRequest -> PauseBulkResponse;
    resume_bulk = ResumeBulk of bulks: ResumeBulkRequest -> ResumeBulkResponse;
    cancel_bulk = CancelBulk of bulks: CancelBulkRequest -> CancelBulkResponse;
    list_bulks = ListBulks of bulks: ListBulksRequest -> ListBulksResponse;
    list_tokens = ListTokens of access: ListTokensRequest -> ListTokensResponse;
    list_audit = ListAudit of access: ListAuditRequest -> ListAuditResponse;
}
