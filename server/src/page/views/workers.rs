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
        params::next_page,
        words::{self, first_line, wire_span, word},
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
    /// The worker, with the windows and jobs that the list shows.
    worker: v1::Worker,
    state: String,
    /// Whether the worker needs attention.
    is_bad: bool,
    labels: String,
    from: String,
    more_windows: usize,
    connected: String,
    quiet: String,
}

/// Renders the workers of all task types, or of one task type.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let task_type = req.params.get("type").to_owned();
    let page_token = req.params.get("page").to_owned();
    let request =
        v1::ListWorkersRequest { task_type: task_type.clone(), page_size: PAGE, page_token, stuck_after: None };
    let answer = req.calls().call::<ListWorkers>(&req.by, request).await?.into_inner();
    let next = next_page([("type", &*task_type)], &answer.next_page_token);
    let rows: Vec<Row> = answer.workers.into_iter().map(row).collect();
    let unknown = rows.is_empty() && req.is_unknown(&task_type).await;
    render(&View { layout: req.layout("workers"), task_type, rows, unknown, next })
}

fn row(mut worker: v1::Worker) -> Row {
    let labels: BTreeMap<_, _> = worker.labels.iter().collect();
    let labels: Vec<String> = labels.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let from = [&worker.principal, &worker.peer, &worker.user_agent];
    let from: Vec<&str> = from.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    let (labels, from) = (first_line(&labels.join(" "), 200), from.join(" · "));
    let more_windows = worker.windows.len().saturating_sub(WINDOWS);
    worker.windows.truncate(WINDOWS);
    for window in &mut worker.windows {
        window.oldest_job_ids.truncate(JOBS);
    }
    Row {
        state: word(worker.state().as_str_name(), "WORKER_STATE_"),
        is_bad: matches!(worker.state(), WorkerState::Stuck | WorkerState::Disconnected),
        labels,
        from,
        more_windows,
        connected: worker.connected_for.map(wire_span).unwrap_or_default(),
        quiet: worker.quiet_for.map(wire_span).unwrap_or_default(),
        worker,
    }
}
