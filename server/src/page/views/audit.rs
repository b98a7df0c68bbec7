//! Audit log.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1;

use crate::{
    api::verbs::ListAudit,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::query,
        words::{When, number, plain},
    },
};

/// Entries per page.
const PAGE: i32 = 50;

#[derive(Template)]
#[template(path = "audit.html")]
struct View {
    layout: Layout,
    principal: String,
    method: String,
    id: String,
    task_type: String,
    rows: Vec<Row>,
    next: String,
}

struct Row {
    at: Option<When>,
    principal: String,
    method: String,
    types: String,
    count: String,
    /// Ids of the changed objects. The flag is true if the object is a job.
    ids: Vec<(String, bool)>,
    reason: String,
    /// Changed settings with their old and new values.
    changes: Vec<String>,
    broker: String,
    peer: String,
}

/// Audit entries, newest first.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let of = |name| req.params.get(name).to_owned();
    let (principal, method, id, task_type) = (of("principal"), of("method"), of("id"), of("type"));
    let request = v1::ListAuditRequest {
        principal: principal.clone(),
        method: method.clone(),
        id: id.clone(),
        task_type: task_type.clone(),
        page_size: PAGE,
        page_token: of("page"),
        ..Default::default()
    };
    let answer = req.calls().call::<ListAudit>(&req.by, request).await?.into_inner();
    let token = &*answer.next_page_token;
    let params =
        [("principal", &*principal), ("method", &*method), ("id", &*id), ("type", &*task_type), ("page", token)];
    let next = if token.is_empty() { String::new() } else { query(params) };
    let rows = answer.entries.into_iter().map(row).collect();
    render(&View { layout: req.layout("audit"), principal, method, id, task_type, rows, next })
}

fn row(entry: v1::AuditEntry) -> Row {
    let is_of_jobs = entry.method.ends_with("Jobs") || entry.method == "EndLeases";
    Row {
        at: When::new(entry.time),
        principal: entry.principal,
        method: entry.method,
        types: entry.task_types.join(", "),
        count: number(entry.count),
        ids: entry.ids.into_iter().map(|id| (id, is_of_jobs)).collect(),
        reason: plain(&entry.reason),
        changes: entry.changes.iter().map(|change| plain(change)).collect(),
        broker: entry.broker,
        peer: entry.peer,
    }
}
