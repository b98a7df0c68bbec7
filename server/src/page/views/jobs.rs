//! The jobs of a type: by state, those that a search finds, or those with the most attempts.

mod asked; // what is searched for

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, JobState, search_jobs_request::Query};

use super::parts::JobRow;
use crate::{
    access::Operation,
    error::Error,
    page::{
        Trouble, Visit,
        layout::{Layout, shown},
        params::query,
        words::{STATES, State, counted, number},
    },
};
use asked::Asked;

/// Jobs on a page.
const PAGE: i32 = 50;

#[derive(Template)]
#[template(path = "jobs.html")]
struct View {
    layout: Layout,
    /// Names to choose from.
    types: Vec<String>,
    task_type: String,
    state: String,
    asked: Asked,
    group: String,
    by_attempts: bool,
    states: Vec<&'static str>,
    rows: Vec<JobRow>,
    operates: bool,
    /// Whether payloads may be searched.
    sees: bool,
    /// What was looked at, if that may not be all.
    note: String,
    /// Why there is no job; empty: there is one.
    empty: String,
    /// The query of the first page, and of the next one.
    first: String,
    next: String,
}

/// Jobs that were found.
#[derive(Default)]
struct Found {
    jobs: Vec<v1::Job>,
    /// Where the next page begins; empty: there is none.
    next: String,
    /// From when on jobs were looked at, for the next page.
    since: String,
    note: String,
    /// What is missing before anything can be looked for.
    missing: &'static str,
}

/// The list.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let params = &visit.params;
    let task_type = params.get("type").to_owned();
    let (state, group, asked) = (params.get("state"), params.get("group"), Asked::of(params));
    // Jobs of one error have no such order, and what a search finds has its own.
    let by_attempts = params.get("sort") == "attempts" && group.is_empty();
    if !params.get("id").is_empty() {
        return super::find::job_of(&visit, params.get("id"));
    }
    let wanted = match state {
        "" => None,
        word => Some(State::parse(word).ok_or_else(|| Error::invalid("state", "is no state of a job"))?),
    };
    let found = match asked.query()? {
        _ if task_type.is_empty() => {
            Found { missing: "Choose a task type, or enter the id of a job.", ..Found::default() }
        }
        Some(query) => search(&visit, &task_type, wanted, &asked, query).await?,
        None if by_attempts => most_attempts(&visit, &task_type, wanted).await?,
        None => list(&visit, &task_type, wanted, group).await?,
    };
    let same = [("type", &*task_type), ("state", state), ("group", group), ("since", &*found.since)];
    let same = || same.into_iter().chain(asked.pairs());
    let first = if params.get("page").is_empty() { String::new() } else { query(same()) };
    let next = if found.next.is_empty() { String::new() } else { query(same().chain([("page", &*found.next)])) };
    let types = visit.calls().counted_types(&visit.by).await?.types.into_iter().map(|view| view.name);
    let view = View {
        layout: visit.layout("jobs"),
        types: types.take(200).collect(),
        operates: visit.by.may(Operation::Operate, &task_type),
        sees: task_type.is_empty() || visit.by.may(Operation::Payload, &task_type),
        empty: empty(&visit, &task_type, &found).await,
        state: state.to_owned(),
        group: group.to_owned(),
        by_attempts,
        states: STATES.into_iter().map(|(_, word)| word).collect(),
        rows: found.jobs.into_iter().map(JobRow::of).collect(),
        note: found.note,
        asked,
        task_type,
        first,
        next,
    };
    shown(&view)
}

/// Why there is no job; empty: there is one.
async fn empty(visit: &Visit, task_type: &str, found: &Found) -> String {
    match found {
        Found { missing, .. } if !missing.is_empty() => (*missing).to_owned(),
        Found { jobs, .. } if !jobs.is_empty() => String::new(),
        Found { next, .. } if !next.is_empty() => "None on this page, but there may be more.".into(),
        _ if visit.is_unknown(task_type).await => format!("There is no task type {task_type}."),
        _ => "There is no such job.".into(),
    }
}

/// Jobs of a state, or of any, in the order in which they run.
async fn list(visit: &Visit, task_type: &str, state: Option<JobState>, group: &str) -> Result<Found, Trouble> {
    let request = v1::ListJobsRequest {
        task_type: task_type.to_owned(),
        state: state.unwrap_or_default() as i32,
        page_size: PAGE,
        page_token: visit.params.get("page").to_owned(),
        include_payload: false,
        error_group: group.to_owned(),
        ..Default::default()
    };
    let answer = visit.calls().list_jobs(&visit.by, request).await?.into_inner();
    Ok(Found { jobs: answer.jobs, next: answer.next_page_token, ..Found::default() })
}

/// Jobs that have what is searched for.
async fn search(
    visit: &Visit,
    task_type: &str,
    state: Option<JobState>,
    asked: &Asked,
    query: Query,
) -> Result<Found, Trouble> {
    if asked.looks() && state.is_none() {
        let missing = "Choose a state, too: headers and payloads are searched in jobs of one state.";
        return Ok(Found { missing, ..Found::default() });
    }
    let since = if asked.looks() { Some(asked.since()?) } else { None };
    let request = v1::SearchJobsRequest {
        query: Some(query),
        task_type: task_type.to_owned(),
        state: state.unwrap_or_default() as i32,
        since,
        page_size: PAGE,
        page_token: visit.params.get("page").to_owned(),
        ..Default::default()
    };
    let answer = visit.calls().search_jobs(&visit.by, request).await?.into_inner();
    let mut note = "The newest first.".to_owned();
    if asked.looks() {
        let [looked_at, all] = [answer.looked_at_count, answer.estimated_count].map(number);
        note = format!("Looked at {looked_at} jobs of about {all}.");
        if !answer.next_page_token.is_empty() {
            note += " The next page goes on.";
        }
    }
    if !answer.skipped_ids.is_empty() {
        let ids: Vec<String> = answer.skipped_ids.iter().map(i64::to_string).collect();
        note = format!("{note} Left out, because to compare their payloads took too long: {}.", ids.join(", "));
    }
    let since = since.map(asked::written).unwrap_or_default();
    Ok(Found { jobs: answer.jobs, next: answer.next_page_token, since, note, missing: "" })
}

/// The jobs with the most attempts that are not finished.
async fn most_attempts(visit: &Visit, task_type: &str, state: Option<JobState>) -> Result<Found, Trouble> {
    let finished = [JobState::Succeeded, JobState::Cancelled, JobState::Expired, JobState::Discarded];
    if state.is_some_and(|state| finished.contains(&state)) {
        let missing = "Finished jobs have no order by attempts. Choose another state, or none.";
        return Ok(Found { missing, ..Found::default() });
    }
    let request = v1::ListJobsRequest {
        task_type: task_type.to_owned(),
        state: state.unwrap_or_default() as i32,
        page_size: 2 * PAGE,
        order: v1::JobOrder::Attempts as i32,
        ..Default::default()
    };
    let answer = visit.calls().list_jobs(&visit.by, request).await?.into_inner();
    let mut note = if answer.has_more {
        format!("The {} with the most attempts.", counted(answer.jobs.len() as i64, "job"))
    } else {
        "Jobs that have started and are not finished.".to_owned()
    };
    if answer.partial {
        let looked_at = counted(answer.looked_at_count, "job");
        note = format!(
            "{note} Looked at {looked_at}, not at all: others may have as many attempts. No dead job was left out."
        );
    }
    Ok(Found { jobs: answer.jobs, note, ..Found::default() })
}
