//! View of one task type: job counts, settings and actions.

use std::time::SystemTime;

use askama::Template;
use axum::response::Response;
use howdah_engine::access::Operation;
use howdah_proto::v1;

use crate::page::{
    PageError, PageRequest,
    layout::{Layout, render},
    type_settings::{SettingRow, rows},
    words::{State, When, number, span, wire_span},
};

#[derive(Template)]
#[allow(clippy::struct_excessive_bools, reason = "each is a condition of the template")]
#[template(path = "task_type.html")]
struct View {
    layout: Layout,
    name: String,
    /// Names of the stores that have the task type; empty if there is only one store.
    store: String,
    paused: bool,
    operates: bool,
    enqueues: bool,
    /// Whether the type has ready jobs, but no worker.
    no_worker: bool,
    counts: Vec<(State, String, bool)>,
    oldest: String,
    next_due: String,
    /// Age of the job counts; empty if there are no counts.
    age: String,
    braked: Option<BrakedSince>,
    settings: Vec<SettingRow>,
}

/// State of the brake of a braked type.
struct BrakedSince {
    since: Option<When>,
    failures: String,
    /// Time of the next trial; `None` if it may start now.
    next: Option<When>,
}

impl BrakedSince {
    fn new(braked: v1::Braked) -> Self {
        let next = braked
            .next_attempt_time
            .filter(|next| SystemTime::try_from(*next).is_ok_and(|next| next > SystemTime::now()));
        Self { since: When::new(braked.since_time), failures: number(braked.failures_in_a_row), next: When::new(next) }
    }
}

/// Renders the task type with the requested name.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let (view, age) = req.calls().counted_type(&req.by, req.params.get("name")).await?;
    let settings = view.settings.clone().unwrap_or_default();
    let counts = super::parts::counts(view.counts.unwrap_or_default());
    let view = View {
        layout: req.layout("types"),
        operates: req.by.may(Operation::Operate, &view.name),
        enqueues: req.by.may(Operation::Enqueue, &view.name),
        no_worker: req.calls().types_without_workers(&req.by).await.is_ok_and(|names| names.contains(&view.name)),
        paused: settings.paused,
        counts: counts.into_iter().map(|(word, count)| (State { word }, number(count), count == 0)).collect(),
        oldest: view.oldest_ready_age.map(wire_span).unwrap_or_default(),
        next_due: view.next_due_in.map(wire_span).unwrap_or_default(),
        age: age.map(span).unwrap_or_default(),
        braked: view.braked.map(BrakedSince::new),
        settings: rows(&settings, &req.type_defaults()),
        name: view.name,
        store: view.store,
    };
    render(&view)
}
