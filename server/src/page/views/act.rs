//! Executes a confirmed action with the corresponding API call.

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Redirect, Response},
};
use howdah_core::error::Error;
use howdah_proto::v1;

use super::{confirm::go_on, spec};
use crate::{
    api::verbs::{
        CancelBulk, CancelJobs, DiscardJobs, EndLeases, PauseBulk, PauseLimitKey, PauseSchedule, ReprioritizeJobs,
        RerunJobs, ResumeBulk, ResumeLimitKey, ResumeSchedule, RetryJobs, RunSchedule, StartBulk, UpdateTaskType,
    },
    page::{
        PageError, PageRequest, SharedPage,
        action::ActionKind,
        action::{Action, Target, done},
    },
};

/// Result of an API call that executes an action.
#[derive(Default)]
struct Done {
    count: usize,
    /// Page token for the next call; empty when the action is complete.
    next: String,
    /// The new job, if the action made one. The browser is redirected to it.
    new_job: Option<i64>,
}

/// Executes the action when the user submits the confirmation form.
pub(in crate::page) async fn act(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    let req = match PageRequest::of_change(page, request).await {
        Ok(req) => req,
        Err(trouble) => return trouble.into_response(),
    };
    match act_on(&req).await {
        Ok(answer) => answer,
        Err(trouble) => trouble.within(req.layout("")),
    }
}

async fn act_on(req: &PageRequest) -> Result<Response, PageError> {
    if req.params.get("sure") != "yes" {
        return Err(Error::invalid("sure", "is missing: submit the form of the confirmation page").into());
    }
    let action = Action::from_params(&req.params)?;
    let made = make(req, &action).await?;
    if !made.next.is_empty() {
        return Ok(go_on(req, &action, made.count, &made.next));
    }
    let back = made.new_job.map_or_else(|| req.back(), |id| format!("/ui/job?id={id}"));
    let mark = if back.contains('?') { '&' } else { '?' };
    Ok(Redirect::to(&format!("{back}{mark}{}", done(action.kind, made.count))).into_response())
}

async fn make(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    match action.kind {
        ActionKind::Retry => retry(req, action).await,
        ActionKind::Rerun => rerun(req, action).await,
        ActionKind::Cancel => cancel(req, action).await,
        ActionKind::Discard => discard(req, action).await,
        ActionKind::Release => release(req, action).await,
        ActionKind::Reprioritize => reprioritize(req, action).await,
        ActionKind::PauseType | ActionKind::ResumeType => {
            let paused = action.kind == ActionKind::PauseType;
            let settings = v1::TaskTypeSettings { paused, ..Default::default() };
            set_type(req, action, settings, vec!["paused".into()]).await
        }
        ActionKind::SetType => {
            let settings = action.given.applied_to(&v1::TaskTypeSettings::default())?;
            set_type(req, action, settings, action.given.paths()).await
        }
        _ if action.kind.starts().is_some() => start_bulk(req, action).await,
        _ => on_name(req, action).await,
    }
}

fn page(req: &PageRequest) -> String {
    req.params.get("page").to_owned()
}

fn filter(action: &Action) -> v1::JobFilter {
    match &action.target {
        Target::Jobs(ids) => v1::JobFilter { ids: ids.clone(), ..Default::default() },
        Target::OfType { task_type, state, group } => v1::JobFilter {
            task_type: task_type.clone(),
            state: state.unwrap_or_default() as i32,
            error_group: group.clone(),
            ..Default::default()
        },
        Target::Type(_) | Target::Key { .. } | Target::Schedule(_) | Target::Bulk(_) => v1::JobFilter::default(),
    }
}

async fn retry(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    let request = v1::RetryJobsRequest { filter: Some(filter(action)), page_token: page(req), ..Default::default() };
    let made = req.calls().call::<RetryJobs>(&req.by, request).await?.into_inner();
    if made.retried_ids.is_empty() && !made.key_held_ids.is_empty() {
        let problem =
            "other jobs hold the keys of these jobs, which stay dead; cancel those jobs, or wait until they have ended";
        return Err(Error::Precondition(problem.into()).into());
    }
    Ok(Done { count: made.retried_ids.len(), next: made.next_page_token, ..Done::default() })
}

async fn rerun(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    // The form contains a request key, so sending the form again runs no job twice.
    let request_key = req.params.get("once").to_owned();
    let request = v1::RerunJobsRequest { ids: filter(action).ids, request_key, ..Default::default() };
    let made = req.calls().call::<RerunJobs>(&req.by, request).await?.into_inner();
    let new: Vec<i64> = made.jobs.iter().map(|job| job.new_id).filter(|id| *id != 0).collect();
    if let ([], Some(job)) = (&new[..], made.jobs.first()) {
        return Err(Error::Precondition(format!("job {} was not run again: {}", job.id, job.problem)).into());
    }
    let new_job = if let [id] = new[..] { Some(id) } else { None };
    Ok(Done { count: new.len(), new_job, ..Done::default() })
}

async fn cancel(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    let filter = filter(action);
    let request = if filter.ids.is_empty() {
        v1::CancelJobsRequest { filter: Some(filter), page_token: page(req), ..Default::default() }
    } else {
        v1::CancelJobsRequest { ids: filter.ids, ..Default::default() }
    };
    let made = req.calls().call::<CancelJobs>(&req.by, request).await?.into_inner();
    Ok(Done { count: made.cancelled_ids.len(), next: made.next_page_token, ..Done::default() })
}

async fn discard(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    let request = v1::DiscardJobsRequest { filter: Some(filter(action)), page_token: page(req) };
    let made = req.calls().call::<DiscardJobs>(&req.by, request).await?.into_inner();
    Ok(Done { count: made.discarded_ids.len(), next: made.next_page_token, ..Done::default() })
}

async fn release(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    let request = v1::EndLeasesRequest { filter: Some(filter(action)), page_token: page(req), error: None };
    let made = req.calls().call::<EndLeases>(&req.by, request).await?.into_inner();
    Ok(Done { count: made.ended_ids.len(), next: made.next_page_token, ..Done::default() })
}

async fn reprioritize(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    let v1::JobFilter { ids, task_type, .. } = filter(action);
    let priority = action.priority.unwrap_or_default();
    let request = v1::ReprioritizeJobsRequest { ids, task_type, priority, page_token: page(req), conditions: None };
    let made = req.calls().call::<ReprioritizeJobs>(&req.by, request).await?.into_inner();
    let count = made.reprioritized_ids.len().max(usize::try_from(made.job_count).unwrap_or_default());
    Ok(Done { count, next: made.next_page_token, ..Done::default() })
}

/// Changes settings of a task type. Reads the type's settings first, because an update replaces all of them.
async fn set_type(
    req: &PageRequest,
    action: &Action,
    settings: v1::TaskTypeSettings,
    paths: Vec<String>,
) -> Result<Done, PageError> {
    let Target::Type(name) = &action.target else { return Err(Error::invalid("type", "is missing").into()) };
    if paths.is_empty() {
        return Err(Error::invalid("settings", "has nothing to change").into());
    }
    let request = v1::UpdateTaskTypeRequest {
        task_type: name.clone(),
        settings: Some(settings),
        update_mask: Some(prost_types::FieldMask { paths }),
    };
    req.calls().call::<UpdateTaskType>(&req.by, request).await?;
    Ok(Done { count: 1, ..Done::default() })
}

async fn start_bulk(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    // The form contains a request key, so sending the form again starts no second bulk operation.
    let request_key = req.params.get("once").to_owned();
    req.calls()
        .call::<StartBulk>(&req.by, v1::StartBulkRequest { spec: spec::from_action(action), request_key })
        .await?;
    Ok(Done { count: 1, ..Done::default() })
}

/// Executes an action on a limit key, a schedule or a bulk operation.
async fn on_name(req: &PageRequest, action: &Action) -> Result<Done, PageError> {
    let (calls, by) = (req.calls(), &req.by);
    match (action.kind, action.target.clone()) {
        (ActionKind::PauseKey, Target::Key { task_type, key: limit_key }) => {
            calls.call::<PauseLimitKey>(by, v1::PauseLimitKeyRequest { task_type, limit_key, duration: None }).await?;
        }
        (ActionKind::ResumeKey, Target::Key { task_type, key: limit_key }) => {
            calls.call::<ResumeLimitKey>(by, v1::ResumeLimitKeyRequest { task_type, limit_key }).await?;
        }
        (ActionKind::PauseSchedule, Target::Schedule(name)) => {
            calls.call::<PauseSchedule>(by, v1::PauseScheduleRequest { name }).await?;
        }
        (ActionKind::ResumeSchedule, Target::Schedule(name)) => {
            calls.call::<ResumeSchedule>(by, v1::ResumeScheduleRequest { name }).await?;
        }
        (ActionKind::RunSchedule, Target::Schedule(name)) => {
            // The form contains a request key, so sending the form again enqueues no second job.
            let request_key = req.params.get("once").to_owned();
            calls.call::<RunSchedule>(by, v1::RunScheduleRequest { name, request_key }).await?;
        }
        (ActionKind::PauseBulk, Target::Bulk(id)) => {
            calls.call::<PauseBulk>(by, v1::PauseBulkRequest { id }).await?;
        }
        (ActionKind::ResumeBulk, Target::Bulk(id)) => {
            calls.call::<ResumeBulk>(by, v1::ResumeBulkRequest { id }).await?;
        }
        (ActionKind::CancelBulk, Target::Bulk(id)) => {
            calls.call::<CancelBulk>(by, v1::CancelBulkRequest { id }).await?;
        }
        _ => return Err(Error::invalid("do", "is an action that this target does not have").into()),
    }
    Ok(Done { count: 1, ..Done::default() })
}
