//! The list of task types with their job counts, which the user can sort; one task type with its counts, settings and actions.

use std::{cmp::Reverse, time::SystemTime};

use askama::Template;
use axum::response::Response;
use howdah_engine::access::Operation;
use howdah_proto::v1;

use crate::{
    api::local::CountedType,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::query,
        type_settings::{SettingRow, rows},
        views::parts::TypeRow,
        words::{State, When, counted, number, span, wire_span},
    },
};

/// Types per page.
const PAGE: usize = 100;

#[derive(Template)]
#[template(path = "types.html")]
struct View {
    layout: Layout,
    q: String,
    sort: &'static str,
    rows: Vec<TypeRow>,
    found: String,
    age: String,
    cut: bool,
    /// Query strings of the previous and of the next page; empty if there is no such page.
    before: String,
    next: String,
}

/// Sort orders.
const SORTS: [&str; 8] = ["name", "total", "ready", "leased", "scheduled", "waiting", "dead", "oldest"];

/// Renders the list of task types.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let known = req.calls().counted_types(&req.by).await?;
    let q = req.params.get("q").to_owned();
    let sort = SORTS.into_iter().find(|sort| *sort == req.params.get("sort")).unwrap_or("name");
    let first: usize = req.params.number("from")?.unwrap_or_default();
    let rows = known.types.into_iter().map(TypeRow::new).filter(|row| row.name.contains(&q));
    let mut rows: Vec<TypeRow> = rows.collect();
    match sort {
        "name" => {}
        "total" => rows.sort_by_key(|row| Reverse(row.total())),
        "oldest" => rows.sort_by_key(|row| Reverse(row.oldest_s)),
        state => rows.sort_by_key(|row| Reverse(row.counts.iter().find(|(word, _)| *word == state).map(|(_, n)| *n))),
    }
    let found = rows.len();
    let link = |from: usize| query([("q", &*q), ("sort", sort), ("from", &from.to_string())]);
    let before = if first == 0 { String::new() } else { link(first.saturating_sub(PAGE)) };
    let next = if first.saturating_add(PAGE) < found { link(first + PAGE) } else { String::new() };
    let mut rows: Vec<TypeRow> = rows.into_iter().skip(first).take(PAGE).collect();
    let without_workers = req.calls().types_without_workers(&req.by).await.unwrap_or_default();
    for row in &mut rows {
        row.no_worker = without_workers.contains(&row.name);
    }
    let view = View {
        layout: req.layout("types"),
        rows,
        found: counted(found as i64, "type"),
        age: known.age.map(span).unwrap_or_default(),
        cut: known.cut,
        q,
        sort,
        before,
        next,
    };
    render(&view)
}

#[derive(Template)]
#[allow(clippy::struct_excessive_bools, reason = "each is a condition of the template")]
#[template(path = "task_type.html")]
struct OneView {
    layout: Layout,
    name: String,
    /// Names of the stores that have the task type; empty if there is only one store.
    store: String,
    /// Whether the type is paused in a store.
    paused: bool,
    /// Whether the type is not paused in a store.
    runs: bool,
    /// Names of the stores in which the type is paused; empty if it is paused in all or none.
    paused_in: String,
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
pub(in crate::page) async fn one(req: PageRequest) -> Result<Response, PageError> {
    let CountedType { view, age, settings } = req.calls().counted_type(&req.by, req.params.get("name")).await?;
    let paused: Vec<&str> =
        settings.iter().filter(|(_, settings)| settings.paused).map(|(store, _)| store.as_str()).collect();
    let runs = paused.len() < settings.len();
    let counts = super::parts::counts(view.counts.unwrap_or_default());
    let view = OneView {
        layout: req.layout("types"),
        operates: req.by.may(Operation::Operate, &view.name),
        enqueues: req.by.may(Operation::Enqueue, &view.name),
        no_worker: req.calls().types_without_workers(&req.by).await.is_ok_and(|names| names.contains(&view.name)),
        paused: !paused.is_empty(),
        paused_in: if runs { paused.join(", ") } else { String::new() },
        runs,
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
