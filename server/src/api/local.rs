//! The services for callers in this process, which is the page for operators. A call takes the way of one that came by gRPC: the
//! same rule, the same checks, the same permissions, the same audit.

mod by;
mod counted;

use std::time::Duration;

use howdah_proto::{
    Rpc,
    v1::{
        self, access_service_server::AccessService as AccessServices, bulk_service_server::BulkService as BulkServices,
        job_service_server::JobService as JobServices, schedule_service_server::ScheduleService as ScheduleServices,
        task_type_service_server::TaskTypeService as TaskTypeServices,
        worker_service_server::WorkerService as WorkerServices,
    },
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{
    access_service::AccessService, bulk_service::BulkService, fleet::FleetService, job_service::JobService,
    schedule_service::ScheduleService, store_service::StoreService, task_type_service::TaskTypeService,
    worker_service::WorkerService,
};
use crate::{
    access::{Refusal, rule},
    broker::SharedBroker,
    error::Error,
    stores::SharedFleet,
};
pub(crate) use by::{By, Client, Unanswered};

/// How long a call may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// What those may call who may change nothing.
const READING: [Rpc; 17] = [
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
    Rpc::GetBulk,
    Rpc::ListBulks,
    Rpc::GetSchedule,
    Rpc::ListSchedules,
    Rpc::ListTokens,
    Rpc::ListAudit,
    Rpc::ListStores,
];

/// The services.
pub(crate) struct Local {
    /// The main store's.
    broker: SharedBroker,
    fleet: SharedFleet,
    jobs: Box<Jobs>,
    types: Box<dyn TaskTypeServices>,
    workers: Box<Workers>,
    schedules: Box<dyn ScheduleServices>,
    bulks: Box<dyn BulkServices>,
    access: Box<dyn AccessServices>,
    stores: StoreService,
}

/// Of one store, or of several.
type Jobs = dyn JobServices<
        StreamEnqueueStream = BoxStream<v1::StreamEnqueueResponse>,
        WaitJobsStream = BoxStream<v1::WaitJobsResponse>,
    >;
type Workers = dyn WorkerServices<WorkStream = BoxStream<v1::WorkResponse>>;

impl Local {
    /// Those of this process.
    pub(crate) fn new(fleet: SharedFleet) -> Self {
        let broker = fleet.main().clone();
        let stores = StoreService::new(fleet.clone(), CancellationToken::new());
        if fleet.only().is_some() {
            return Self {
                jobs: Box::new(JobService::new(broker.clone(), CancellationToken::new())),
                types: Box::new(TaskTypeService::new(broker.clone())),
                workers: Box::new(WorkerService::new(broker.clone())),
                schedules: Box::new(ScheduleService::new(broker.clone())),
                bulks: Box::new(BulkService::new(broker.clone())),
                access: Box::new(AccessService::new(broker.clone())),
                stores,
                broker,
                fleet,
            };
        }
        let all = || Box::new(FleetService::new(fleet.clone(), CancellationToken::new()));
        let (jobs, types, workers) = (all(), all(), all());
        let (schedules, bulks, access) = (all(), all(), all());
        Self { broker, fleet, jobs, types, workers, schedules, bulks, access, stores }
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
        match &answer {
            Ok(answer) => by.unanswered().note(answer.metadata()),
            Err(status) => self.note(rpc.name(), by, status),
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
    get_bulk = GetBulk of bulks: GetBulkRequest -> GetBulkResponse;
    list_bulks = ListBulks of bulks: ListBulksRequest -> ListBulksResponse;
    list_tokens = ListTokens of access: ListTokensRequest -> ListTokensResponse;
    list_audit = ListAudit of access: ListAuditRequest -> ListAuditResponse;
    list_stores = ListStores of stores: ListStoresRequest -> ListStoresResponse;
}
