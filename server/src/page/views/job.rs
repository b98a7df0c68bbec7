//! One job: what has become of it, what it waits for, what it carries.

mod reasons;
mod timeline;

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, JobState};

use crate::{
    access::Operation,
    error::Error,
    page::{
        Trouble, Visit,
        bytes::Shown,
        layout::{Layout, shown},
        what::What,
        words::{State, When, plain},
    },
};
use reasons::Reasons;
use timeline::Event;

#[derive(Template)]
#[template(path = "job.html")]
struct View {
    layout: Layout,
    id: i64,
    task_type: String,
    state: State,
    facts: Vec<(&'static str, String)>,
    times: Vec<(&'static str, When)>,
    tags: Vec<String>,
    headers: Vec<(String, String)>,
    events: Vec<Event>,
    reasons: Option<Reasons>,
    /// Jobs that it waits for.
    after: Vec<i64>,
    parent: Option<i64>,
    next_stages: Vec<String>,
    /// Its last progress report: the part in percent if there is one, a text, when.
    progress: Option<Progress>,
    /// What it carries, under its name; `None` if there is nothing.
    carries: Vec<(&'static str, Option<Shown>)>,
    /// Whether the person who looks may see that.
    sees: bool,
    /// Whether that person may change it, and what holds it back.
    operates: bool,
    /// The names and words of what can be done, and whether it is final.
    actions: Vec<(&'static str, &'static str, bool)>,
    reprioritizes: bool,
    priority: i32,
}

struct Progress {
    percent: Option<f64>,
    text: String,
    at: Option<When>,
}

/// The job of an id.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let id = visit.params.number("id")?.ok_or_else(|| Error::invalid("id", "is missing"))?;
    // Its memory is held until the page is made.
    let answer = visit.calls().get_job(&visit.by, v1::GetJobRequest { id }).await?;
    let job = answer.get_ref().job.as_ref().ok_or_else(|| Error::Internal("the answer has no job".into()))?;
    // What has finished needs no reasons, and they would be read from the archive. Any other job may have ended since, or its
    // history may be gone: then there is nothing to explain.
    let explained = match job.state() {
        JobState::Succeeded | JobState::Cancelled | JobState::Expired | JobState::Discarded => None,
        _ => visit.calls().explain_job(&visit.by, v1::ExplainJobRequest { id }).await.ok(),
    };
    let operates = visit.by.may(Operation::Operate, &job.task_type);
    let sees = visit.by.may(Operation::Payload, &job.task_type);
    let way = visit.params.get("as");
    let carried = [("Payload", &job.payload), ("Result", &job.result), ("Checkpoint", &job.checkpoint)];
    let mut headers: Vec<_> = job.headers.iter().map(|(name, value)| (plain(name), plain(value))).collect();
    headers.sort();
    let possible = if operates { possible(job.state()) } else { &[] };
    let view = View {
        layout: visit.layout("jobs"),
        id,
        state: State::of(job.state()),
        facts: facts(job),
        times: times(job),
        tags: job.tags.clone(),
        headers,
        events: timeline::of(job),
        reasons: explained.and_then(|answer| Reasons::of(answer.into_inner())),
        after: job.after.clone(),
        parent: Some(job.parent_id).filter(|id| *id != 0),
        next_stages: job.next_stages.clone(),
        progress: job.progress.as_ref().map(progress),
        carries: carried.map(|(name, bytes)| (name, if sees { Shown::of(bytes, way) } else { None })).into(),
        sees,
        operates,
        actions: possible.iter().map(|what| (what.words().name, what.words().button, what.words().is_final)).collect(),
        reprioritizes: operates
            && matches!(job.state(), JobState::Ready | JobState::Scheduled | JobState::Waiting | JobState::Leased),
        priority: job.priority,
        task_type: job.task_type.clone(),
    };
    shown(&view)
}

/// What can be done with a job in a state.
fn possible(state: JobState) -> &'static [What] {
    match state {
        JobState::Dead => &[What::Retry, What::Discard],
        JobState::Scheduled => &[What::Retry, What::Cancel],
        JobState::Leased => &[What::Release, What::Cancel],
        JobState::Ready | JobState::Waiting => &[What::Cancel],
        _ => &[],
    }
}

fn facts(job: &v1::Job) -> Vec<(&'static str, String)> {
    let all = [
        ("Attempts", format!("{} of {}", job.attempt, job.max_attempts)),
        ("Priority", job.priority.to_string()),
        ("Key", job.key.clone()),
        ("Limit key", job.limit_key.clone()),
        ("Fairness key", job.fair_key.clone()),
        ("Enqueued as", job.original_task_type.clone()),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn times(job: &v1::Job) -> Vec<(&'static str, When)> {
    let all = [
        ("Enqueued", job.create_time),
        ("Starts not before", job.run_time),
        ("Times out", job.deadline),
        ("Expires", job.expire_time),
    ];
    all.into_iter().filter_map(|(name, time)| Some((name, When::of(time)?))).collect()
}

fn progress(progress: &v1::JobProgress) -> Progress {
    let percent = progress.fraction.map(|part| (part * 100.0).clamp(0.0, 100.0).round());
    Progress { percent, text: plain(&progress.text), at: When::of(progress.update_time) }
}
