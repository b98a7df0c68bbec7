//! The jobs of a type: by state, by the job's key or tag, or those with the most attempts.

use std::cmp::Reverse;

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
        words::{STATES, State, number},
    },
};

/// Jobs on a page.
const PAGE: i32 = 50;
/// For the order by attempts: how many of each state are looked at.
const LOOKED_AT: i32 = 500;
/// The states in which jobs have attempts behind them and are not finished.
const ATTEMPTED: [JobState; 3] = [JobState::Leased, JobState::Scheduled, JobState::Dead];

#[derive(Template)]
#[template(path = "jobs.html")]
struct View {
    layout: Layout,
    /// Names to choose from.
    types: Vec<String>,
    task_type: String,
    state: String,
    key: String,
    tag: String,
    group: String,
    by_attempts: bool,
    states: Vec<&'static str>,
    rows: Vec<JobRow>,
    operates: bool,
    /// What was looked at, if that may not be all.
    note: String,
    /// The query of the first page, and of the next one.
    first: String,
    next: String,
}

/// The list.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let params = &visit.params;
    let task_type = params.get("type").to_owned();
    let (state, key, tag, group) = (params.get("state"), params.get("key"), params.get("tag"), params.get("group"));
    let by_attempts = params.get("sort") == "attempts";
    if !params.get("id").is_empty() {
        return super::find::job_of(&visit, params.get("id"));
    }
    let wanted = match state {
        "" => None,
        word => Some(State::parse(word).ok_or_else(|| Error::invalid("state", "is no state of a job"))?),
    };
    let mut note = String::new();
    let mut next_token = String::new();
    let jobs = if task_type.is_empty() {
        Vec::new()
    } else if !key.is_empty() {
        note = "Only unfinished jobs are found by their key.".into();
        holder(&visit, &task_type, key).await?
    } else if !tag.is_empty() {
        let request = v1::SearchJobsRequest {
            query: Some(Query::Tag(tag.to_owned())),
            task_type: task_type.clone(),
            state: wanted.unwrap_or_default() as i32,
            page_size: PAGE,
            page_token: params.get("page").to_owned(),
            ..Default::default()
        };
        note = "The newest first.".into();
        let answer = visit.calls().search_jobs(&visit.by, request).await?.into_inner();
        next_token = answer.next_page_token;
        answer.jobs
    } else if by_attempts {
        let (jobs, looked_at) = most_attempts(&visit, &task_type, wanted).await?;
        note = looked_at;
        jobs
    } else {
        let request = v1::ListJobsRequest {
            task_type: task_type.clone(),
            state: wanted.unwrap_or_default() as i32,
            page_size: PAGE,
            page_token: params.get("page").to_owned(),
            include_payload: false,
            error_group: group.to_owned(),
        };
        let answer = visit.calls().list_jobs(&visit.by, request).await?.into_inner();
        next_token = answer.next_page_token;
        answer.jobs
    };
    let asked = [("type", &*task_type), ("state", state), ("tag", tag), ("group", group)];
    let first = if params.get("page").is_empty() { String::new() } else { query(asked) };
    let next =
        if next_token.is_empty() { String::new() } else { query(asked.into_iter().chain([("page", &*next_token)])) };
    let types = visit.calls().counted_types(&visit.by).await?.types.into_iter().map(|view| view.name);
    let view = View {
        layout: visit.layout("jobs"),
        types: types.take(200).collect(),
        operates: visit.by.may(Operation::Operate, &task_type),
        state: state.to_owned(),
        key: key.to_owned(),
        tag: tag.to_owned(),
        group: group.to_owned(),
        by_attempts,
        states: STATES.into_iter().map(|(_, word)| word).collect(),
        rows: jobs.into_iter().map(JobRow::of).collect(),
        task_type,
        note,
        first,
        next,
    };
    shown(&view)
}

/// The job that holds a key.
async fn holder(visit: &Visit, task_type: &str, key: &str) -> Result<Vec<v1::Job>, Trouble> {
    let Some(id) = visit.calls().key_holder(&visit.by, task_type, key).await? else { return Ok(Vec::new()) };
    match visit.calls().get_job(&visit.by, v1::GetJobRequest { id }).await {
        Ok(answer) => Ok(answer.into_inner().job.into_iter().collect()),
        // It has ended meanwhile.
        Err(status) if status.code() == tonic::Code::NotFound => Ok(Vec::new()),
        Err(status) => Err(status.into()),
    }
}

/// Jobs with the most attempts first, of a bounded number of jobs in each state. There is no index for it, and none is worth its
/// price with each job.
async fn most_attempts(
    visit: &Visit,
    task_type: &str,
    state: Option<JobState>,
) -> Result<(Vec<v1::Job>, String), Trouble> {
    let mut jobs = Vec::new();
    let mut cut = Vec::new();
    for state in ATTEMPTED.into_iter().filter(|known| state.is_none_or(|state| state == *known)) {
        let request = v1::ListJobsRequest {
            task_type: task_type.to_owned(),
            state: state as i32,
            page_size: LOOKED_AT,
            ..Default::default()
        };
        let answer = visit.calls().list_jobs(&visit.by, request).await?.into_inner();
        if !answer.next_page_token.is_empty() {
            cut.push(format!("{} {}", number(answer.jobs.len() as i64), State::of(state).word));
        }
        jobs.extend(answer.jobs);
    }
    jobs.sort_by_key(|job| Reverse(job.attempt));
    jobs.truncate(2 * PAGE as usize);
    let looked_at = if cut.is_empty() {
        "Jobs that are leased, scheduled or dead.".into()
    } else {
        format!("Of the first {} jobs only: there are more.", cut.join(", "))
    };
    Ok((jobs, looked_at))
}
