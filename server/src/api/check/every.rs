//! Runs all checks on the same bytes, for tests and fuzzers.

use prost::Message;

use super::{
    Error, bulk_spec, cancel_jobs, create_token, discard_jobs, end_leases, enqueue, extend, get_stats, list_audit,
    list_bulks, list_error_groups, list_jobs, list_limit_keys, list_schedules, list_task_types, list_tokens,
    list_workers, pause_limit_key, progress, pull_jobs, reprioritize_jobs, resume_limit_key, retry_jobs, revoke_tokens,
    run_schedule, schedule, search_jobs, settle, start_bulk, update_settings, update_task_type, wait_jobs,
    work_request,
};
use crate::job::{ClusterSettings, Limits};
use howdah_proto::v1;

/// Decodes the bytes as every kind of request and runs its check. Returns all errors.
pub(crate) fn check_all(bytes: &[u8]) -> Vec<Error> {
    let (limits, broker) = (ClusterSettings::DEFAULT, Limits::default());
    let mut errors = Vec::new();
    on(bytes, |m: v1::EnqueueJobsRequest| enqueue(m.jobs, m.request_key, &limits), &mut errors);
    on(bytes, |m: v1::StreamEnqueueRequest| enqueue(m.jobs, m.request_key, &limits), &mut errors);
    on(bytes, |m: v1::ListJobsRequest| list_jobs(&m), &mut errors);
    on(bytes, |m: v1::SearchJobsRequest| search_jobs(m, &limits), &mut errors);
    on(bytes, |m: v1::CancelJobsRequest| cancel_jobs(m, &limits), &mut errors);
    on(bytes, |m: v1::ReprioritizeJobsRequest| reprioritize_jobs(m, &limits), &mut errors);
    on(bytes, |m: v1::RetryJobsRequest| retry_jobs(m, &limits), &mut errors);
    on(bytes, |m: v1::DiscardJobsRequest| discard_jobs(m, &limits), &mut errors);
    on(bytes, |m: v1::EndLeasesRequest| end_leases(m, &limits, &broker), &mut errors);
    on(bytes, |m: v1::ListErrorGroupsRequest| list_error_groups(&m), &mut errors);
    on(bytes, |m: v1::ListTaskTypesRequest| list_task_types(&m), &mut errors);
    on(bytes, |m: v1::UpdateTaskTypeRequest| update_task_type(&m, &limits), &mut errors);
    on(bytes, |m: v1::UpdateSettingsRequest| update_settings(&m), &mut errors);
    on(bytes, |m: v1::PullJobsRequest| pull_jobs(&m, &limits, &broker), &mut errors);
    on(bytes, |m: v1::SettleJobsRequest| settle(m.outcomes, &limits, &broker), &mut errors);
    on(bytes, |m: v1::ExtendJobsRequest| extend(m.extensions, &limits), &mut errors);
    on(bytes, |m: v1::ReportProgressRequest| progress(m.reports, &limits), &mut errors);
    on(bytes, |m: v1::WorkRequest| work_request(m, false, &limits, &broker), &mut errors);
    on(bytes, |m: v1::CreateScheduleRequest| schedule(m.schedule, &limits), &mut errors);
    on(bytes, |m: v1::Schedule| schedule(Some(m), &limits), &mut errors);
    on(bytes, |m: v1::ListSchedulesRequest| list_schedules(&m), &mut errors);
    on(bytes, |m: v1::RunScheduleRequest| run_schedule(m, &limits), &mut errors);
    on(bytes, |m: v1::WaitJobsRequest| wait_jobs(m, &limits), &mut errors);
    on(bytes, |m: v1::PauseLimitKeyRequest| pause_limit_key(m, &limits), &mut errors);
    on(bytes, |m: v1::ResumeLimitKeyRequest| resume_limit_key(m, &limits), &mut errors);
    on(bytes, |m: v1::ListLimitKeysRequest| list_limit_keys(&m), &mut errors);
    on(bytes, |m: v1::GetStatsRequest| get_stats(&m), &mut errors);
    on(bytes, |m: v1::ListWorkersRequest| list_workers(&m), &mut errors);
    on(bytes, |m: v1::PreviewBulkRequest| bulk_spec(m.spec, &limits), &mut errors);
    on(bytes, |m: v1::StartBulkRequest| start_bulk(m, &limits), &mut errors);
    on(bytes, |m: v1::ListBulksRequest| list_bulks(&m), &mut errors);
    on(bytes, create_token, &mut errors);
    on(bytes, |m: v1::ListTokensRequest| list_tokens(&m), &mut errors);
    on(bytes, revoke_tokens, &mut errors);
    on(bytes, list_audit, &mut errors);
    on(bytes, |m: v1::NewJob| enqueue(vec![m], "k".into(), &limits), &mut errors);
    errors
}

fn on<M: Message + Default, T>(bytes: &[u8], check: impl Fn(M) -> Result<T, Error>, errors: &mut Vec<Error>) {
    if let Ok(message) = M::decode(bytes) {
        errors.extend(check(message).err());
    }
}
