//! Lists error groups: failed jobs grouped by their errors.

use askama::Template;
use axum::response::Response;
use howdah_engine::access::Operation;
use howdah_proto::v1;

use crate::{
    api::verbs::ListErrorGroups,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        words::{When, first_line, number},
    },
};

/// Maximum number of error groups to show.
const MOST: i32 = 100;

#[derive(Template)]
#[template(path = "failures.html")]
struct View {
    layout: Layout,
    task_type: String,
    types: Vec<String>,
    /// Whether error groups were queried. False if no type is chosen and the caller may not read all types.
    looked: bool,
    /// Whether the task type does not exist.
    unknown: bool,
    partial: bool,
    rows: Vec<Row>,
}

/// An error group.
pub(super) struct Row {
    pub(super) task_type: String,
    pub(super) group: String,
    pub(super) dead: String,
    pub(super) backing_off: String,
    pub(super) last: Option<When>,
    first: Option<When>,
    pub(super) example: i64,
    pub(super) error: String,
    operates: bool,
    pub(super) any_dead: bool,
}

/// Renders the error groups of one task type, or of all types.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let task_type = req.params.get("type").to_owned();
    let looked = !task_type.is_empty() || req.by.may_everywhere(Operation::Read);
    let answer = if looked {
        let request = v1::ListErrorGroupsRequest { task_type: task_type.clone(), page_size: MOST };
        req.calls().call::<ListErrorGroups>(&req.by, request).await?.into_inner()
    } else {
        v1::ListErrorGroupsResponse::default()
    };
    let types = req.calls().counted_types(&req.by).await?.types.into_iter().map(|view| view.name);
    let view = View {
        layout: req.layout("failures"),
        types: types.take(200).collect(),
        unknown: answer.groups.is_empty() && !task_type.is_empty() && req.is_unknown(&task_type).await,
        task_type,
        looked,
        partial: answer.partial,
        rows: answer.groups.into_iter().map(|group| row(&req, group)).collect(),
    };
    render(&view)
}

pub(super) fn row(req: &PageRequest, group: v1::ErrorGroup) -> Row {
    Row {
        operates: req.by.may(Operation::Operate, &group.task_type),
        any_dead: group.dead_count > 0,
        dead: number(group.dead_count),
        backing_off: number(group.backing_off_count),
        last: When::new(group.last_failure_time),
        first: When::new(group.first_failure_time),
        example: group.example_job_id,
        error: first_line(&group.example_error, 300),
        task_type: group.task_type,
        group: group.error_group,
    }
}
