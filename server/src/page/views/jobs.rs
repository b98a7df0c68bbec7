//! Lists jobs of one task type or of all: by state, from a search, by their failures, or by attempts.

mod search_form; // search query

use askama::Template;
use axum::response::Response;
use howdah_core::error::Error;
use howdah_engine::access::Operation;
use howdah_proto::v1::{self, JobState, search_jobs_request::Query};

use super::parts::JobRow;
use crate::{
    api::verbs::{ListJobs, SearchJobs},
    page::{
        PageError, PageRequest,
        conditions::written,
        layout::{Layout, render},
        params::{next_page, query},
        words::{STATES, State, counted, number},
    },
};
use search_form::SearchForm;

/// Jobs per page.
const PAGE: i32 = 50;
/// Orders of the list, other than the default of the state.
const SORTS: [&str; 3] = ["run", "failure", "attempts"];

#[derive(Template)]
#[template(path = "jobs.html")]
struct View {
    layout: Layout,
    /// Task types that the form offers.
    types: Vec<String>,
    task_type: String,
    state: String,
    search_form: SearchForm,
    group: String,
    /// Chosen order; empty for the default of the state.
    sort: &'static str,
    states: Vec<&'static str>,
    rows: Vec<JobRow>,
    operates: bool,
    /// Whether the user may enqueue jobs.
    enqueues: bool,
    /// Bulk operations on all jobs of the filter: action and button.
    whole: Vec<(&'static str, &'static str)>,
    /// Whether the user may search in payloads.
    sees: bool,
    /// Sentences above the list: its order, and how many jobs the search scanned. Empty if not needed.
    note: String,
    /// Message that explains an empty list; empty if the list has jobs.
    empty: String,
    /// Query strings of the first and of the next page of the list.
    first: String,
    next: String,
}

/// One page of jobs, and the position of the next page.
#[derive(Default)]
struct Found {
    jobs: Vec<v1::Job>,
    /// Page token of the next page; empty on the last page.
    next: String,
    /// Start of the searched period, which the next page must use as well.
    since: String,
    note: String,
    /// Sentence that asks for an input that the query needs; empty if nothing is missing.
    missing: &'static str,
}

/// Renders the list of jobs.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let params = &req.params;
    let task_type = params.get("type").to_owned();
    let (state, group, search_form) = (params.get("state"), params.get("group"), SearchForm::from_params(params)?);
    let sort = SORTS.into_iter().find(|sort| *sort == params.get("sort")).unwrap_or_default();
    if !params.get("id").is_empty() {
        return super::find::job_of(&req, params.get("id"));
    }
    let wanted = match state {
        "" => None,
        word => Some(State::parse(word).ok_or_else(|| Error::invalid("state", "is not a job state"))?),
    };
    let searched = search_form.query()?;
    // Bulk operations are offered only for lists with all jobs that they would change. A list by attempts lacks jobs,
    // and so does a list by failures, except of dead jobs.
    let lists_all = matches!(sort, "" | "run") || (sort == "failure" && wanted == Some(JobState::Dead));
    let offers_bulk = searched.is_none() && lists_all && !task_type.is_empty();
    let whole = if offers_bulk && req.by.may(Operation::Operate, &task_type) { whole(wanted) } else { Vec::new() };
    let found = match searched {
        _ if task_type.is_empty() && !req.by.may_everywhere(Operation::Read) => Found {
            missing: "Choose a task type, or enter the id of a job: you may not read all types.",
            ..Found::default()
        },
        query if task_type.is_empty() && (query.is_some() || search_form.wanted().is_some()) => {
            Found { missing: "Choose a task type, too: a search covers one type.", ..Found::default() }
        }
        query if query.is_some() || search_form.wanted().is_some() => {
            search(&req, &task_type, wanted, &search_form, query).await?
        }
        _ if sort == "attempts" => most_attempts(&req, &task_type, wanted).await?,
        _ => list(&req, &task_type, wanted, group, sort).await?,
    };
    let same = [("type", &*task_type), ("state", state), ("group", group), ("sort", sort), ("since", &*found.since)];
    let searched = search_form.pairs();
    let same = || same.into_iter().chain(searched.iter().map(|(name, value)| (*name, value.as_str())));
    let first = if params.get("page").is_empty() { String::new() } else { query(same()) };
    let next = next_page(same(), &found.next);
    let view = View {
        layout: req.layout("jobs"),
        types: req.type_names().await?,
        operates: req.by.may(Operation::Operate, &task_type),
        enqueues: req.by.may(Operation::Enqueue, &task_type),
        whole,
        sees: task_type.is_empty() || req.by.may(Operation::Payload, &task_type),
        empty: empty(&req, &task_type, &found).await,
        state: state.to_owned(),
        group: group.to_owned(),
        sort,
        states: STATES.into_iter().map(|(_, word)| word).collect(),
        rows: found.jobs.into_iter().map(JobRow::new).collect(),
        note: found.note,
        search_form,
        task_type,
        first,
        next,
    };
    render(&view)
}

/// Returns the message that explains an empty list; empty if the list has jobs.
async fn empty(req: &PageRequest, task_type: &str, found: &Found) -> String {
    match found {
        Found { missing, .. } if !missing.is_empty() => (*missing).to_owned(),
        Found { jobs, .. } if !jobs.is_empty() => String::new(),
        Found { next, .. } if !next.is_empty() => "No job on this page, but there may be more.".into(),
        _ if req.is_unknown(task_type).await => format!("There is no task type {task_type}."),
        _ => "There is no such job.".into(),
    }
}

/// Returns the bulk operations that change jobs in this state, with their buttons. Finished jobs are not changed.
fn whole(state: Option<JobState>) -> Vec<(&'static str, &'static str)> {
    let [retry, cancel, discard] =
        [("bulk-retry", "Retry all"), ("bulk-cancel", "Cancel all"), ("bulk-discard", "Discard all")];
    match state {
        None | Some(JobState::Scheduled) => vec![retry, cancel],
        Some(JobState::Ready | JobState::Leased | JobState::Waiting) => vec![cancel],
        Some(JobState::Dead) => vec![retry, discard],
        Some(_) => Vec::new(),
    }
}

/// Reads a page of the jobs in one state or in any state. Dead jobs are listed by their failures, newest first, unless another
/// order was chosen.
async fn list(
    req: &PageRequest,
    task_type: &str,
    state: Option<JobState>,
    group: &str,
    sort: &str,
) -> Result<Found, PageError> {
    let by_failure = sort == "failure" || (sort.is_empty() && state == Some(JobState::Dead));
    if by_failure && !state.is_none_or(|state| matches!(state, JobState::Dead | JobState::Scheduled)) {
        let missing = "Only dead and scheduled jobs are ordered by failure. Choose one of these states, or none.";
        return Ok(Found { missing, ..Found::default() });
    }
    if !group.is_empty() && task_type.is_empty() {
        return Ok(Found { missing: "Choose a task type, too: an error group is of one type.", ..Found::default() });
    }
    let order = if by_failure { v1::JobOrder::Failure } else { v1::JobOrder::Unspecified };
    let request = v1::ListJobsRequest {
        task_type: task_type.to_owned(),
        state: state.unwrap_or_default() as i32,
        page_size: PAGE,
        page_token: req.params.get("page").to_owned(),
        include_payload: false,
        error_group: group.to_owned(),
        order: order.into(),
        conditions: None,
    };
    let answer = req.calls().call::<ListJobs>(&req.by, request).await?.into_inner();
    let note = if by_failure { "The newest failure first.".to_owned() } else { String::new() };
    Ok(Found { jobs: answer.jobs, next: answer.next_page_token, note, ..Found::default() })
}

/// Reads a page of the jobs that match a search.
async fn search(
    req: &PageRequest,
    task_type: &str,
    state: Option<JobState>,
    search_form: &SearchForm,
    query: Option<Query>,
) -> Result<Found, PageError> {
    if search_form.looks() && state.is_none() {
        let missing = "Choose a state, too: a search that scans jobs covers one state.";
        return Ok(Found { missing, ..Found::default() });
    }
    let since = if search_form.looks() { Some(search_form.since()?) } else { None };
    let request = v1::SearchJobsRequest {
        query,
        conditions: search_form.wanted().cloned(),
        task_type: task_type.to_owned(),
        state: state.unwrap_or_default() as i32,
        since,
        page_size: PAGE,
        page_token: req.params.get("page").to_owned(),
        ..Default::default()
    };
    let answer = req.calls().call::<SearchJobs>(&req.by, request).await?.into_inner();
    let mut note = "The newest first.".to_owned();
    // A search by key that goes on in the archive may find nothing on a page.
    let goes_on = answer.jobs.len() < PAGE as usize && !answer.next_page_token.is_empty();
    if search_form.looks() || goes_on {
        let [scanned_count, all] = [answer.scanned_count, answer.estimated_count].map(number);
        note = format!("Scanned {scanned_count} jobs of about {all}.");
        if !answer.next_page_token.is_empty() {
            note += " The next page continues.";
        }
    }
    if !answer.skipped_ids.is_empty() {
        let ids: Vec<String> = answer.skipped_ids.iter().map(i64::to_string).collect();
        note = format!("{note} Skipped jobs, because comparing their payloads took too long: {}.", ids.join(", "));
    }
    let since = since.map(written).unwrap_or_default();
    Ok(Found { jobs: answer.jobs, next: answer.next_page_token, since, note, missing: "" })
}

/// Reads the unfinished jobs with the most attempts.
async fn most_attempts(req: &PageRequest, task_type: &str, state: Option<JobState>) -> Result<Found, PageError> {
    if task_type.is_empty() {
        return Ok(Found {
            missing: "Choose a task type, too: the order by attempts is of one type.",
            ..Found::default()
        });
    }
    let finished = [JobState::Succeeded, JobState::Cancelled, JobState::Expired, JobState::Discarded];
    if state.is_some_and(|state| finished.contains(&state)) {
        let missing = "Finished jobs cannot be ordered by attempts. Choose another state, or none.";
        return Ok(Found { missing, ..Found::default() });
    }
    let request = v1::ListJobsRequest {
        task_type: task_type.to_owned(),
        state: state.unwrap_or_default() as i32,
        page_size: 2 * PAGE,
        order: v1::JobOrder::Attempts as i32,
        ..Default::default()
    };
    let answer = req.calls().call::<ListJobs>(&req.by, request).await?.into_inner();
    let mut note = if answer.has_more {
        format!("The {} with the most attempts.", counted(answer.jobs.len() as i64, "job"))
    } else {
        "All jobs that have started and are not finished.".to_owned()
    };
    if answer.partial {
        let scanned_count = counted(answer.scanned_count, "job");
        note = format!(
            "{note} Scanned {scanned_count}, but not all of them: jobs that were not scanned may have as many attempts. \
             All dead jobs are included."
        );
    }
    Ok(Found { jobs: answer.jobs, note, ..Found::default() })
}
