//! Services for callers in this process, which is the page for operators. A local call passes the same rules, checks, permissions
//! and audit as a gRPC call.

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
    access_service::AccessService, bulk_service::BulkService, job_service::JobService, routing::RoutingService,
    schedule_service::ScheduleService, store_service::StoreService, task_type_service::TaskTypeService,
    worker_service::WorkerService,
};
use crate::{
    access::{Refusal, rule},
    broker::SharedBroker,
    error::Error,
    stores::SharedStores,
};
pub(crate) use by::{By, Client, Unanswered};

/// Time limit of a call.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// Calls that a read-only page may make.
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

/// Services of this process.
pub(crate) struct Local {
    /// Broker of the primary store.
    broker: SharedBroker,
    all_stores: SharedStores,
    jobs: Box<Jobs>,
    types: Box<dyn TaskTypeServices>,
    workers: Box<Workers>,
    schedules: Box<dyn ScheduleServices>,
    bulks: Box<dyn BulkServices>,
    access: Box<dyn AccessServices>,
    stores: StoreService,
}

/// Job service of one store or of several.
type Jobs = dyn JobServices<
        StreamEnqueueStream = BoxStream<v1::StreamEnqueueResponse>,
        WaitJobsStream = BoxStream<v1::WaitJobsResponse>,
    >;
type Workers = dyn WorkerServices<WorkStream = BoxStream<v1::WorkResponse>>;

impl Local {
    /// Creates the local services of a process.
    pub(crate) fn new(all_stores: SharedStores) -> Self {
        let broker = all_stores.main().clone();
        let stores = StoreService::new(all_stores.clone(), CancellationToken::new());
        if all_stores.only().is_some() {
            return Self {
                jobs: Box::new(JobService::new(broker.clone(), CancellationToken::new())),
                types: Box::new(TaskTypeService::new(broker.clone())),
                workers: Box::new(WorkerService::new(broker.clone())),
                schedules: Box::new(ScheduleService::new(broker.clone())),
                bulks: Box::new(BulkService::new(broker.clone())),
                access: Box::new(AccessService::new(broker.clone())),
                stores,
                broker,
                all_stores,
            };
        }
        let all = || Box::new(RoutingService::new(all_stores.clone(), CancellationToken::new()));
        let (jobs, types, workers) = (all(), all(), all());
        let (schedules, bulks, access) = (all(), all(), all());
        Self { broker, all_stores, jobs, types, workers, schedules, bulks, access, stores }
    }

    /// Makes a call if the caller is permitted. The response holds its memory until it is dropped.
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
                return Err(Error::Denied("the page is read-only (setting page)".into()).into());
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

    /// Records a rejected call.
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
