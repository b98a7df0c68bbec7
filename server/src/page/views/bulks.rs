//! Lists bulk operations with their progress, and shows a form to start one.

use askama::Template;
use axum::response::Response;
use howdah_engine::access::Operation;
use howdah_proto::v1::{self, BulkOperation, BulkState, JobState};

use super::spec;
use crate::{
    api::verbs::ListBulks,
    page::{
        PageError, PageRequest,
        conditions::{self, Field},
        layout::{Layout, render},
        params::next_page,
        words::{self, STATES, first_line, number, word},
    },
};

/// Bulk operations per page.
const PAGE: i32 = 50;

#[derive(Template)]
#[template(path = "bulks.html")]
struct View {
    layout: Layout,
    /// Task types that the form offers.
    types: Vec<String>,
    task_type: String,
    open_only: bool,
    rows: Vec<Row>,
    /// Whether the principal may start bulk operations.
    operates: bool,
    states: Vec<&'static str>,
    state: String,
    group: String,
    conditions: Vec<Field>,
    /// Query string of the next page of the list; empty on the last page.
    next: String,
}

struct Row {
    bulk: v1::Bulk,
    task_type: String,
    state: String,
    /// Whether to offer a pause: the bulk operation runs, and the user may change it.
    can_pause: bool,
    can_resume: bool,
    can_undo: bool,
    what: String,
    group: String,
    /// Total of the progress bar.
    selected: i64,
    progress: String,
    problem: String,
    by: String,
}

/// Renders the list of bulk operations, newest first.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let params = &req.params;
    let (task_type, open_only) = (params.get("type").to_owned(), params.get("open") == "yes");
    let page_token = params.get("page").to_owned();
    let request = v1::ListBulksRequest { task_type: task_type.clone(), open_only, page_size: PAGE, page_token };
    let answer = req.calls().call::<ListBulks>(&req.by, request).await?.into_inner();
    let open = if open_only { "yes" } else { "" };
    let next = next_page([("type", &*task_type), ("open", open)], &answer.next_page_token);
    let types = req.type_names().await?;
    let operates = |name: &str| req.by.may(Operation::Operate, name);
    let view = View {
        layout: req.layout("bulks"),
        operates: operates(&task_type) || (task_type.is_empty() && types.iter().any(|name| operates(name))),
        types,
        rows: rows(&req, answer.bulks),
        states: STATES.into_iter().take_while(|(state, _)| *state != JobState::Succeeded).map(|(_, w)| w).collect(),
        state: params.get("state").to_owned(),
        group: params.get("group").to_owned(),
        // A bulk operation cannot select the jobs of a worker.
        conditions: conditions::fields(params).into_iter().filter(|field| field.name != "worker").collect(),
        task_type,
        open_only,
        next,
    };
    render(&view)
}

/// Builds the table rows. Offers no undo for a bulk operation that another bulk operation has fully undone.
fn rows(req: &PageRequest, bulks: Vec<v1::Bulk>) -> Vec<Row> {
    let undone = |bulk: &v1::Bulk| {
        bulks.iter().any(|other| {
            let of = other.spec.as_ref().map_or(0, |spec| spec.undo_bulk_id);
            of == bulk.id && other.store == bulk.store && other.done_count >= bulk.done_count
        })
    };
    let undone: Vec<bool> = bulks.iter().map(undone).collect();
    bulks.into_iter().zip(undone).map(|(bulk, undone)| row(req, bulk, undone)).collect()
}

fn row(req: &PageRequest, bulk: v1::Bulk, undone: bool) -> Row {
    let state = bulk.state();
    let spec = bulk.spec.clone().unwrap_or_default();
    let operates = req.by.may(Operation::Operate, &spec.task_type);
    let by = [bulk.principal.as_str(), bulk.reason.as_str()];
    Row {
        state: word(state.as_str_name(), "BULK_STATE_"),
        can_pause: operates && state == BulkState::Running,
        can_resume: operates && state == BulkState::Paused,
        can_undo: operates
            && !undone
            && bulk.end_time.is_some()
            && bulk.done_count > 0
            && matches!(spec.operation(), BulkOperation::Cancel | BulkOperation::Discard),
        what: spec::describe(&spec),
        group: first_line(&spec.error_group, 140),
        task_type: spec.task_type,
        // Shows at least `done_count` as the total, because a bulk operation may change more jobs than were counted at
        // its start.
        selected: bulk.selected_count.max(bulk.done_count).max(1),
        progress: progress(&bulk),
        problem: first_line(&bulk.problem, 200),
        by: by.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": "),
        bulk,
    }
}

/// Formats the progress, such as `3 of 5, 1 skipped`.
fn progress(bulk: &v1::Bulk) -> String {
    let more = if bulk.has_more { "more than " } else { "" };
    let mut parts = vec![format!("{} of {more}{}", number(bulk.done_count), number(bulk.selected_count))];
    let others = [(bulk.skipped_count, "skipped"), (bulk.failed_count, "failed")].into_iter();
    parts.extend(others.filter(|(count, _)| *count > 0).map(|(count, name)| format!("{} {name}", number(count))));
    parts.join(", ")
}
