//! Tests every call with every scope: one scope permits the call, and all other scopes do not.

use howdah_engine::access::{Operation, Rule};
use howdah_proto::{Rpc, v1};
use howdah_server::api::rule;
use tokio_stream::once;
use tonic::{Code, Status};

use super::fixture::Guarded;
use crate::support::*;

/// Makes the call `rpc` about a task type. The match has no default, so it covers every call of the protocol.
pub async fn call(caller: &Service, rpc: Rpc, task_type: &str) -> Result<(), Status> {
    let task_type = || task_type.to_owned();
    let (name, jobs) = (|| format!("s.{}", task_type()), || vec![new_job(&task_type(), "p")]);
    let selection = || Some(v1::JobFilter { task_type: task_type(), ..Default::default() });
    let schedule = || {
        let plan = Some(v1::schedule::Plan::Period(wire(HOUR)));
        Some(v1::Schedule { name: name(), template: Some(new_job(&task_type(), "p")), plan, ..Default::default() })
    };
    let limit_key = || "k".to_owned();
    let (mut job, mut work, mut types) = (caller.jobs(), caller.workers(), caller.task_types());
    let (mut plan, mut settings, mut access) = (caller.schedules(), caller.settings(), caller.access());
    let (mut bulk, mut stores) = (caller.bulks(), caller.stores());
    let spec = || {
        let operation = v1::BulkOperation::Discard as i32;
        Some(v1::BulkSpec { operation, task_type: task_type(), ..Default::default() })
    };
    match rpc {
        Rpc::EnqueueJobs => {
            job.enqueue_jobs(v1::EnqueueJobsRequest { jobs: jobs(), ..Default::default() }).await.map(drop)
        }
        Rpc::StreamEnqueue => {
            let request = v1::StreamEnqueueRequest { sequence: 1, jobs: jobs(), ..Default::default() };
            let mut answers = job.stream_enqueue(once(request)).await?.into_inner();
            let error = answers.message().await?.expect("an answer").error;
            error.map_or(Ok(()), |error| Err(Status::new(Code::from_i32(error.code), error.message)))
        }
        Rpc::SearchJobs => {
            let query = Some(v1::search_jobs_request::Query::Key("k".into()));
            job.search_jobs(v1::SearchJobsRequest { query, task_type: task_type(), ..Default::default() })
                .await
                .map(drop)
        }
        Rpc::ExplainJob => job.explain_job(v1::ExplainJobRequest { id: 1 }).await.map(drop),
        Rpc::GetJob => job.get_job(v1::GetJobRequest { id: 1 }).await.map(drop),
        Rpc::ListJobs => {
            job.list_jobs(v1::ListJobsRequest { task_type: task_type(), ..Default::default() }).await.map(drop)
        }
        Rpc::CancelJobs => {
            job.cancel_jobs(v1::CancelJobsRequest { filter: selection(), ..Default::default() }).await.map(drop)
        }
        Rpc::RetryJobs => {
            job.retry_jobs(v1::RetryJobsRequest { filter: selection(), ..Default::default() }).await.map(drop)
        }
        Rpc::RerunJobs => job.rerun_jobs(v1::RerunJobsRequest { ids: vec![1], ..Default::default() }).await.map(drop),
        Rpc::DiscardJobs => {
            job.discard_jobs(v1::DiscardJobsRequest { filter: selection(), ..Default::default() }).await.map(drop)
        }
        Rpc::EndLeases => {
            job.end_leases(v1::EndLeasesRequest { filter: selection(), ..Default::default() }).await.map(drop)
        }
        Rpc::ListErrorGroups => {
            job.list_error_groups(v1::ListErrorGroupsRequest { task_type: task_type(), page_size: 0 }).await.map(drop)
        }
        Rpc::WaitJobs => {
            let mut answers =
                job.wait_jobs(v1::WaitJobsRequest { ids: vec![1], timeout: Some(wire(secs(0))) }).await?.into_inner();
            answers.message().await.map(drop)
        }
        Rpc::ReprioritizeJobs => job
            .reprioritize_jobs(v1::ReprioritizeJobsRequest {
                task_type: task_type(),
                priority: 1,
                ..Default::default()
            })
            .await
            .map(drop),
        Rpc::Work => caller.worker(&task_type()).answer().await.map(drop),
        Rpc::PullJobs => work
            .pull_jobs(v1::PullJobsRequest { task_types: vec![task_type()], max_jobs: 1, ..Default::default() })
            .await
            .map(drop),
        Rpc::SettleJobs => work
            .settle_jobs(v1::SettleJobsRequest {
                outcomes: vec![v1::Outcome { id: 1, token: 1, ..Default::default() }],
            })
            .await
            .map(drop),
        Rpc::ExtendJobs => work
            .extend_jobs(v1::ExtendJobsRequest {
                extensions: vec![v1::Extension { id: 1, token: 1, duration: Some(wire(HOUR)) }],
            })
            .await
            .map(drop),
        Rpc::ReportProgress => work
            .report_progress(v1::ReportProgressRequest {
                reports: vec![v1::ProgressReport { id: 1, token: 1, ..Default::default() }],
            })
            .await
            .map(drop),
        Rpc::GetResults => work.get_results(v1::GetResultsRequest { id: 1, start: 0 }).await.map(drop),
        Rpc::ListWorkers => {
            work.list_workers(v1::ListWorkersRequest { task_type: task_type(), ..Default::default() }).await.map(drop)
        }
        Rpc::ListTaskTypes => types
            .list_task_types(v1::ListTaskTypesRequest { task_type: task_type(), ..Default::default() })
            .await
            .map(drop),
        Rpc::UpdateTaskType => {
            let settings = Some(v1::TaskTypeSettings::default());
            types
                .update_task_type(v1::UpdateTaskTypeRequest { task_type: task_type(), settings, update_mask: None })
                .await
                .map(drop)
        }
        Rpc::PauseLimitKey => types
            .pause_limit_key(v1::PauseLimitKeyRequest {
                task_type: task_type(),
                limit_key: limit_key(),
                duration: None,
            })
            .await
            .map(drop),
        Rpc::ResumeLimitKey => types
            .resume_limit_key(v1::ResumeLimitKeyRequest { task_type: task_type(), limit_key: limit_key() })
            .await
            .map(drop),
        Rpc::UpdateLimitKey => types
            .update_limit_key(v1::UpdateLimitKeyRequest {
                task_type: task_type(),
                limit_key: limit_key(),
                max_running: 1,
            })
            .await
            .map(drop),
        Rpc::ListLimitKeys => types
            .list_limit_keys(v1::ListLimitKeysRequest { task_type: task_type(), ..Default::default() })
            .await
            .map(drop),
        Rpc::GetStats => {
            types.get_stats(v1::GetStatsRequest { task_type: task_type(), ..Default::default() }).await.map(drop)
        }
        Rpc::PreviewBulk => bulk.preview_bulk(v1::PreviewBulkRequest { spec: spec() }).await.map(drop),
        Rpc::StartBulk => bulk.start_bulk(v1::StartBulkRequest { spec: spec(), ..Default::default() }).await.map(drop),
        Rpc::PauseBulk => bulk.pause_bulk(v1::PauseBulkRequest { id: 1 }).await.map(drop),
        Rpc::ResumeBulk => bulk.resume_bulk(v1::ResumeBulkRequest { id: 1 }).await.map(drop),
        Rpc::CancelBulk => bulk.cancel_bulk(v1::CancelBulkRequest { id: 1 }).await.map(drop),
        Rpc::GetBulk => bulk.get_bulk(v1::GetBulkRequest { id: 1 }).await.map(drop),
        Rpc::ListBulks => {
            bulk.list_bulks(v1::ListBulksRequest { task_type: task_type(), ..Default::default() }).await.map(drop)
        }
        Rpc::CreateSchedule => plan.create_schedule(v1::CreateScheduleRequest { schedule: schedule() }).await.map(drop),
        Rpc::UpdateSchedule => plan
            .update_schedule(v1::UpdateScheduleRequest { schedule: schedule(), allow_missing: true })
            .await
            .map(drop),
        Rpc::GetSchedule => plan.get_schedule(v1::GetScheduleRequest { name: name() }).await.map(drop),
        Rpc::ListSchedules => plan.list_schedules(v1::ListSchedulesRequest::default()).await.map(drop),
        Rpc::DeleteSchedule => plan.delete_schedule(v1::DeleteScheduleRequest { name: name() }).await.map(drop),
        Rpc::PauseSchedule => plan.pause_schedule(v1::PauseScheduleRequest { name: name() }).await.map(drop),
        Rpc::ResumeSchedule => plan.resume_schedule(v1::ResumeScheduleRequest { name: name() }).await.map(drop),
        Rpc::RunSchedule => {
            plan.run_schedule(v1::RunScheduleRequest { name: name(), request_key: String::new() }).await.map(drop)
        }
        Rpc::GetSettings => settings.get_settings(v1::GetSettingsRequest {}).await.map(drop),
        Rpc::UpdateSettings => {
            let changed = Some(v1::ClusterSettings { headers: 64, ..Default::default() });
            settings.update_settings(v1::UpdateSettingsRequest { settings: changed, update_mask: None }).await.map(drop)
        }
        Rpc::AdvanceClock => {
            settings.advance_clock(v1::AdvanceClockRequest { duration: Some(wire(HOUR)) }).await.map(drop)
        }
        Rpc::ListStores => stores.list_stores(v1::ListStoresRequest::default()).await.map(drop),
        Rpc::DrainStore => stores.drain_store(v1::DrainStoreRequest::default()).await.map(drop),
        Rpc::MoveType => {
            let request =
                v1::MoveTypeRequest { task_type: task_type(), to_store: "nowhere".into(), ..Default::default() };
            stores.move_type(request).await?.into_inner().message().await.map(drop)
        }
        Rpc::ReloadStores => stores.reload_stores(v1::ReloadStoresRequest {}).await.map(drop),
        Rpc::OpenStore => stores.open_store(v1::OpenStoreRequest::default()).await.map(drop),
        Rpc::CreateToken => {
            let request =
                v1::CreateTokenRequest { principal: "p".into(), scopes: vec!["read:a".into()], lifetime: None };
            access.create_token(request).await.map(drop)
        }
        Rpc::ListTokens => access.list_tokens(v1::ListTokensRequest::default()).await.map(drop),
        Rpc::ListAudit => access.list_audit(v1::ListAuditRequest::default()).await.map(drop),
        Rpc::RevokeTokens => {
            let selection = Some(v1::revoke_tokens_request::Selection::Id("none".into()));
            access.revoke_tokens(v1::RevokeTokensRequest { selection }).await.map(drop)
        }
    }
}

/// Whether the permission check let the call pass, whatever its result.
fn is_permitted(result: &Result<(), Status>) -> bool {
    !result.as_ref().is_err_and(|error| matches!(error.code(), Code::PermissionDenied | Code::Unauthenticated))
}

/// Calls that name jobs, schedules or bulk operations instead of task types. For these calls, objects without permission do not
/// exist (see `foreign`).
const BY_NAME: [Rpc; 17] = [
    Rpc::GetBulk,
    Rpc::PauseBulk,
    Rpc::ResumeBulk,
    Rpc::CancelBulk,
    Rpc::ExplainJob,
    Rpc::GetJob,
    Rpc::GetResults,
    Rpc::RerunJobs,
    Rpc::WaitJobs,
    Rpc::SettleJobs,
    Rpc::ExtendJobs,
    Rpc::ReportProgress,
    Rpc::GetSchedule,
    Rpc::DeleteSchedule,
    Rpc::PauseSchedule,
    Rpc::ResumeSchedule,
    Rpc::RunSchedule,
];
/// Calls that list items of all task types, and omit items that the caller may not read.
const OF_ALL: [Rpc; 1] = [Rpc::ListSchedules];

#[tokio::test]
async fn each_call_is_permitted_by_its_operation_on_its_type_and_by_no_other() {
    let guarded = Guarded::start().await;
    for (operation, word) in Operation::ALL {
        let own = guarded.caller(word, &[&format!("{word}:mine.*")]).await;
        let all = guarded.caller(word, &[&format!("{word}:*")]).await;
        for &rpc in Rpc::ALL {
            let needed = match rule(rpc) {
                Rule::Anyone => Some((true, true)),
                Rule::Types(needed) => {
                    (needed == operation).then_some((true, BY_NAME.contains(&rpc) || OF_ALL.contains(&rpc)))
                }
                Rule::TypesEither(needed, other) => [needed, other]
                    .contains(&operation)
                    .then_some((true, BY_NAME.contains(&rpc) || OF_ALL.contains(&rpc))),
                Rule::Everything(needed) => (needed == operation).then_some((false, false)),
            };
            let (on_mine, on_theirs) = needed.unwrap_or_default();
            for (caller, task_type, expected) in
                [(&own, "mine.a", on_mine), (&own, "theirs", on_theirs), (&all, "theirs", needed.is_some())]
            {
                let result = with_timeout(rpc.path(), call(caller, rpc, task_type)).await;
                assert_eq!(is_permitted(&result), expected, "{rpc:?} on {task_type} with {word}: {result:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_refusal_names_the_principal_and_the_scope_that_it_needs() {
    let guarded = Guarded::start().await;
    let caller = guarded.caller("ann", &["enqueue:mail.*"]).await;
    let refused = caller.enqueue("sms").refused().await;
    assert_eq!((refused.code, refused.reason.as_str()), (Code::PermissionDenied, "PERMISSION_DENIED"));
    assert!(refused.message.contains("\"ann\"") && refused.message.contains("enqueue:sms"), "{refused}");
    assert_eq!(guarded.broker.count("SELECT count(*) FROM howdah.task_type WHERE name = 'sms'").await, 0);
}

#[tokio::test]
async fn lists_have_only_what_the_caller_may_read() {
    let guarded = Guarded::start().await;
    for task_type in ["mine", "theirs"] {
        guarded.admin.enqueue(task_type).await;
        call(&guarded.admin, Rpc::CreateSchedule, task_type).await.expect("a schedule");
    }
    let caller = guarded.caller("ann", &["read:mine", "enqueue:mine"]).await;
    let types = caller.task_types().list_task_types(v1::ListTaskTypesRequest::default()).await.unwrap().into_inner();
    assert_eq!(types.task_types.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["mine"]);
    assert_eq!(types.storage, None);
    let schedules = caller.schedules().list_schedules(v1::ListSchedulesRequest::default()).await.unwrap().into_inner();
    assert_eq!(schedules.schedules.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["s.mine"]);
    for rpc in BY_NAME.into_iter().filter(|rpc| format!("{rpc:?}").ends_with("Schedule")) {
        let error = call(&caller, rpc, "theirs").await.expect_err("foreign");
        assert_eq!(error.code(), Code::NotFound, "{rpc:?}");
    }
    let refused = caller.jobs().list_error_groups(v1::ListErrorGroupsRequest::default()).await.expect_err("all types");
    assert_eq!(refused.code(), Code::PermissionDenied);
}
