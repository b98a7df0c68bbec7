//! Audit log.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1;

use crate::{
    api::verbs::ListAudit,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::next_page,
        words,
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
    entries: Vec<v1::AuditEntry>,
    next: String,
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
    let params = [("principal", &*principal), ("method", &*method), ("id", &*id), ("type", &*task_type)];
    let next = next_page(params, &answer.next_page_token);
    render(&View { layout: req.layout("audit"), principal, method, id, task_type, entries: answer.entries, next })
}
