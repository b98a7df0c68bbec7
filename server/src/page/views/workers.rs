//! Lists the workers of all brokers: windows, leased jobs, settled jobs, and stuck workers.

use std::collections::BTreeMap;

use askama::Template;
use axum::response::Response;
use howdah_proto::v1::{self, WorkerState};

use crate::{
    api::verbs::ListWorkers,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::query,
        words::{first_line, number, wire_span},
    },
};

/// Workers per page.
const PAGE: i32 = 100;
/// Maximum number of windows per worker (`WINDOWS`), and of jobs per window (`JOBS`), in the list.
const WINDOWS: usize = 10;
const JOBS: usize = 5;

#[derive(Template)]
#[template(path = "workers.html")]
struct View {
    layout: Layout,
    task_type: String,
    rows: Vec<Row>,
    /// Whether the task type does not exist.
    unknown: bool,
    next: String,
}

struct Row {
    worker_id: String,
    /// State of the worker; `is_bad` if the worker needs attention.
    state: &'static str,
    is_bad: bool,
    labels: String,
    from: String,
    broker: String,
    /// Store to which the row's numbers belong; empty if there is only one store.
    store: String,
    windows: Vec<Window>,
    more_windows: usize,
    settled: String,
    connected: String,
    quiet: String,
}

struct Window {
    task_type: String,
    held: String,
    most: String,
    /// Ids of the window's jobs with the oldest leases.
    jobs: Vec<i64>,
}

/// Renders the workers of all task types, or of one task type.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let task_type = req.params.get("type").to_owned();
    let page_token = req.params.get("page").to_owned();
    let request =
        v1::ListWorkersRequest { task_type: task_type.clone(), page_size: PAGE, page_token, stuck_after: None };
    let answer = req.calls().call::<ListWorkers>(&req.by, request).await?.into_inner();
    let mut next = String::new();
    if !answer.next_page_token.is_empty() {
        next = query([("type", &*task_type), ("page", &answer.next_page_token)]);
    }
    let rows: Vec<Row> = answer.workers.into_iter().map(row).collect();
    let unknown = rows.is_empty() && !task_type.is_empty() && req.is_unknown(&task_type).await;
    render(&View { layout: req.layout("workers"), task_type, rows, unknown, next })
}

fn row(worker: v1::Worker) -> Row {
    let (state, is_bad) = match worker.state() {
        WorkerState::Unspecified => ("unknown", false),
        WorkerState::Idle => ("idle", false),
        WorkerState::Working => ("working", false),
        WorkerState::Draining => ("draining", false),
        WorkerState::Stuck => ("stuck", true),
        WorkerState::Disconnected => ("disconnected", true),
    };
    let labels: BTreeMap<_, _> = worker.labels.iter().collect();
    let labels: Vec<String> = labels.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let from = [&worker.principal, &worker.peer, &worker.user_agent];
    let from: Vec<&str> = from.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    Row {
        state,
        is_bad,
        labels: first_line(&labels.join(" "), 200),
        from: from.join(" · "),
        more_windows: worker.windows.len().saturating_sub(WINDOWS),
        windows: worker.windows.into_iter().take(WINDOWS).map(window).collect(),
        settled: number(worker.settled_count.into()),
        connected: worker.connected_for.map(wire_span).unwrap_or_default(),
        quiet: worker.quiet_for.map(wire_span).unwrap_or_default(),
        worker_id: worker.worker_id,
        broker: worker.broker,
        store: worker.store,
    }
}

fn window(window: v1::WorkerWindow) -> Window {
    Window {
        held: number(window.held_count.into()),
        most: number(window.window_jobs.into()),
        jobs: window.oldest_job_ids.into_iter().take(JOBS).collect(),
        task_type: window.task_type,
    }
}
