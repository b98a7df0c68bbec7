//! One job: timeline, reasons for waiting, payload and headers.

mod reasons;
mod timeline;

use askama::Template;
use axum::response::Response;
use howdah_core::{
    error::Error,
    job::{options::JobOption, plain_values},
};
use howdah_engine::access::Operation;
use howdah_proto::v1::{self, HistoryMode, JobState};

use crate::{
    api::verbs::{ExplainJob, GetJob},
    page::{
        PageError, PageRequest,
        action::ActionKind,
        bytes::Shown,
        layout::{Layout, render},
        words::{State, When},
    },
};
use reasons::Reasons;
use timeline::Event;

#[derive(Template)]
#[template(path = "job.html")]
struct View<'a> {
    layout: Layout,
    job: &'a v1::Job,
    state: State,
    facts: Vec<(String, String)>,
    times: Vec<(&'static str, When)>,
    headers: Vec<(&'a String, &'a String)>,
    events: Vec<Event>,
    reasons: Option<Reasons>,
    /// Last progress report of the job: percentage if known, text and time.
    progress: Option<Progress>,
    /// Payload, result and checkpoint, each with its name; `None` if empty.
    carries: Vec<(&'static str, Option<Shown>)>,
    /// Whether the user may see payloads and results.
    sees: bool,
    /// Whether the user may change the job and end the pauses that block it.
    operates: bool,
    /// Actions that the state allows: name, label, and whether the action is final.
    actions: Vec<(&'static str, &'static str, bool)>,
    reprioritizes: bool,
}

struct Progress {
    percent: Option<f64>,
    text: String,
    at: Option<When>,
}

/// Renders the job with the requested id.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let id = req.params.number("id")?.ok_or_else(|| Error::invalid("id", "is missing"))?;
    // `answer` holds the memory reserved for the answer until the page is rendered.
    let answer = req.calls().call::<GetJob>(&req.by, v1::GetJobRequest { id }).await?;
    let job =
        answer.get_ref().job.as_ref().ok_or_else(|| Error::Internal("bug: the GetJob answer has no job".into()))?;
    // `ExplainJob` is not called for finished jobs: the timeline suffices, and the call would read the archive. An
    // error of the call is ignored, because the job may have ended meanwhile.
    let explained = match job.state() {
        JobState::Succeeded | JobState::Cancelled | JobState::Expired | JobState::Discarded => None,
        _ => req.calls().call::<ExplainJob>(&req.by, v1::ExplainJobRequest { id }).await.ok(),
    };
    let operates = req.by.may(Operation::Operate, &job.task_type);
    let sees = req.by.may(Operation::Payload, &job.task_type);
    let way = req.params.get("as");
    let carried = [("Payload", &job.payload), ("Result", &job.result), ("Checkpoint", &job.checkpoint)];
    let mut headers: Vec<_> = job.headers.iter().collect();
    headers.sort();
    let possible = if operates { possible(job.state()) } else { &[] };
    let view = View {
        layout: req.layout("jobs"),
        job,
        state: State::new(job.state()),
        facts: facts(job),
        times: times(job),
        headers,
        events: timeline::events(job),
        reasons: explained.and_then(|answer| Reasons::new(answer.into_inner())),
        progress: job.progress.as_ref().map(progress),
        carries: carried.map(|(name, bytes)| (name, if sees { Shown::new(bytes, way) } else { None })).into(),
        sees,
        operates,
        actions: possible.iter().map(|kind| (kind.words().name, kind.words().button, kind.is_final())).collect(),
        reprioritizes: operates
            && matches!(job.state(), JobState::Ready | JobState::Scheduled | JobState::Waiting | JobState::Leased),
    };
    render(&view)
}

/// Returns the actions that are possible in a job's state.
fn possible(state: JobState) -> &'static [ActionKind] {
    match state {
        JobState::Dead => &[ActionKind::Retry, ActionKind::Discard],
        JobState::Scheduled => &[ActionKind::Retry, ActionKind::Cancel],
        JobState::Leased => &[ActionKind::Release, ActionKind::Cancel],
        JobState::Ready | JobState::Waiting => &[ActionKind::Cancel],
        JobState::Succeeded | JobState::Cancelled | JobState::Expired | JobState::Discarded => &[ActionKind::Rerun],
        JobState::Unspecified => &[],
    }
}

fn facts(job: &v1::Job) -> Vec<(String, String)> {
    let mut facts = vec![
        ("Attempts".to_owned(), format!("{} of {}", job.attempt, job.max_attempts)),
        ("Priority".to_owned(), job.priority.to_string()),
        ("Key".to_owned(), job.key.clone()),
        ("History".to_owned(), history(job.history()).to_owned()),
        ("Enqueued as".to_owned(), job.original_task_type.clone()),
    ];
    let label = |name| JobOption::find(name).map(JobOption::label).unwrap_or_default();
    facts.extend(plain_values(job).into_iter().map(|(name, value)| (label(name), value)));
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// Describes the condition under which history keeps the job after success; empty if the job sets no mode.
fn history(mode: HistoryMode) -> &'static str {
    match mode {
        HistoryMode::Unspecified => "",
        HistoryMode::Full => "kept",
        HistoryMode::Failures => "kept after a failed attempt",
        HistoryMode::WithoutEmpty => "kept with a result or after a failed attempt",
        HistoryMode::None => "not kept",
    }
}

fn times(job: &v1::Job) -> Vec<(&'static str, When)> {
    let all = [
        ("Enqueued", job.create_time),
        ("Starts not before", job.run_time),
        ("Times out", job.deadline),
        ("Expires", job.expire_time),
    ];
    all.into_iter().filter_map(|(name, time)| Some((name, When::new(time)?))).collect()
}

fn progress(progress: &v1::JobProgress) -> Progress {
    let percent = progress.fraction.map(|part| (part * 100.0).clamp(0.0, 100.0).round());
    Progress { percent, text: progress.text.clone(), at: When::new(progress.update_time) }
}
