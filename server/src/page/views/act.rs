//! Does what was confirmed, by the call of the protocol that does it.

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Redirect, Response},
};
use howdah_proto::v1;

use super::{confirm::go_on, spec};
use crate::{
    error::Error,
    page::{
        SharedPage, Trouble, Visit,
        action::{Action, Target, done},
        what::What,
    },
};

/// What a call did.
#[derive(Default)]
struct Done {
    count: usize,
    /// Where the next call goes on; empty: it is done.
    next: String,
}

/// Takes the form of a confirmation.
pub(in crate::page) async fn act(State(page): State<SharedPage>, request: Request<Body>) -> Response {
    let visit = match Visit::of_change(page, request).await {
        Ok(visit) => visit,
        Err(trouble) => return trouble.into_response(),
    };
    match act_on(&visit).await {
        Ok(answer) => answer,
        Err(trouble) => trouble.within(visit.layout("")),
    }
}

async fn act_on(visit: &Visit) -> Result<Response, Trouble> {
    if visit.params.get("sure") != "yes" {
        return Err(Error::invalid("sure", "is missing: the form of the confirmation has it").into());
    }
    let action = Action::of(&visit.params)?;
    let made = make(visit, &action).await?;
    if !made.next.is_empty() {
        return Ok(go_on(visit, &action, made.count, &made.next));
    }
    let back = visit.back();
    let mark = if back.contains('?') { '&' } else { '?' };
    Ok(Redirect::to(&format!("{back}{mark}{}", done(action.what, made.count))).into_response())
}

async fn make(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    match action.what {
        What::Retry => retry(visit, action).await,
        What::Cancel => cancel(visit, action).await,
        What::Discard => discard(visit, action).await,
        What::Release => release(visit, action).await,
        What::Reprioritize => reprioritize(visit, action).await,
        What::PauseType => pause(visit, action, true).await,
        What::ResumeType => pause(visit, action, false).await,
        _ if action.what.starts().is_some() => start_bulk(visit, action).await,
        _ => on_name(visit, action).await,
    }
}

fn page(visit: &Visit) -> String {
    visit.params.get("page").to_owned()
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

async fn retry(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    let request = v1::RetryJobsRequest { filter: Some(filter(action)), page_token: page(visit), ..Default::default() };
    let made = visit.calls().retry_jobs(&visit.by, request).await?.into_inner();
    if made.retried_ids.is_empty() && !made.key_held_ids.is_empty() {
        let problem =
            "another job holds their key, so these jobs stay dead; cancel that one, or wait until it has ended";
        return Err(Error::Precondition(problem.into()).into());
    }
    Ok(Done { count: made.retried_ids.len(), next: made.next_page_token })
}

async fn cancel(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    let filter = filter(action);
    let request = if filter.ids.is_empty() {
        v1::CancelJobsRequest { filter: Some(filter), page_token: page(visit), ..Default::default() }
    } else {
        v1::CancelJobsRequest { ids: filter.ids, ..Default::default() }
    };
    let made = visit.calls().cancel_jobs(&visit.by, request).await?.into_inner();
    Ok(Done { count: made.cancelled_ids.len(), next: made.next_page_token })
}

async fn discard(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    let request = v1::DiscardJobsRequest { filter: Some(filter(action)), page_token: page(visit) };
    let made = visit.calls().discard_jobs(&visit.by, request).await?.into_inner();
    Ok(Done { count: made.discarded_ids.len(), next: made.next_page_token })
}

async fn release(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    let request = v1::EndLeasesRequest { ids: filter(action).ids, error: None };
    let made = visit.calls().end_leases(&visit.by, request).await?.into_inner();
    Ok(Done { count: made.ended_ids.len(), ..Done::default() })
}

async fn reprioritize(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    let v1::JobFilter { ids, task_type, .. } = filter(action);
    let priority = action.priority.unwrap_or_default();
    let request = v1::ReprioritizeJobsRequest { ids, task_type, priority, page_token: page(visit) };
    let made = visit.calls().reprioritize_jobs(&visit.by, request).await?.into_inner();
    let count = made.reprioritized_ids.len().max(usize::try_from(made.job_count).unwrap_or_default());
    Ok(Done { count, next: made.next_page_token })
}

/// The settings of a type are replaced as a whole, so they are read first.
async fn pause(visit: &Visit, action: &Action, paused: bool) -> Result<Done, Trouble> {
    let Target::Type(name) = &action.target else { return Err(Error::invalid("type", "is missing").into()) };
    let (view, _) = visit.calls().counted_type(&visit.by, name).await?;
    let settings = v1::TaskTypeSettings { paused, ..view.settings.unwrap_or_default() };
    let request = v1::UpdateTaskTypeRequest { task_type: name.clone(), settings: Some(settings) };
    visit.calls().update_task_type(&visit.by, request).await?;
    Ok(Done { count: 1, ..Done::default() })
}

async fn start_bulk(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    // A form that is sent twice starts one.
    let request_key = visit.params.get("once").to_owned();
    visit.calls().start_bulk(&visit.by, v1::StartBulkRequest { spec: spec::of(action), request_key }).await?;
    Ok(Done { count: 1, ..Done::default() })
}

/// What is done to a limit key, a schedule or a bulk operation.
async fn on_name(visit: &Visit, action: &Action) -> Result<Done, Trouble> {
    let (calls, by) = (visit.calls(), &visit.by);
    match (action.what, action.target.clone()) {
        (What::PauseKey, Target::Key { task_type, key: limit_key }) => {
            calls.pause_limit_key(by, v1::PauseLimitKeyRequest { task_type, limit_key, duration: None }).await?;
        }
        (What::ResumeKey, Target::Key { task_type, key: limit_key }) => {
            calls.resume_limit_key(by, v1::ResumeLimitKeyRequest { task_type, limit_key }).await?;
        }
        (What::PauseSchedule, Target::Schedule(name)) => {
            calls.pause_schedule(by, v1::PauseScheduleRequest { name }).await?;
        }
        (What::ResumeSchedule, Target::Schedule(name)) => {
            calls.resume_schedule(by, v1::ResumeScheduleRequest { name }).await?;
        }
        (What::RunSchedule, Target::Schedule(name)) => {
            // A form that is sent twice runs it once.
            let request_key = visit.params.get("once").to_owned();
            calls.run_schedule(by, v1::RunScheduleRequest { name, request_key }).await?;
        }
        (What::PauseBulk, Target::Bulk(id)) => {
            calls.pause_bulk(by, v1::PauseBulkRequest { id }).await?;
        }
        (What::ResumeBulk, Target::Bulk(id)) => {
            calls.resume_bulk(by, v1::ResumeBulkRequest { id }).await?;
        }
        (What::CancelBulk, Target::Bulk(id)) => {
            calls.cancel_bulk(by, v1::CancelBulkRequest { id }).await?;
        }
        _ => return Err(Error::invalid("do", "does not fit what it is done to").into()),
    }
    Ok(Done { count: 1, ..Done::default() })
}
