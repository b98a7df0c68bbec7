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
        words::{self, first_line},
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
    pub(super) group: v1::ErrorGroup,
    /// Start of an error of the group.
    pub(super) error: String,
    operates: bool,
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
    let view = View {
        layout: req.layout("failures"),
        types: req.type_names().await?,
        unknown: answer.groups.is_empty() && req.is_unknown(&task_type).await,
        task_type,
        looked,
        partial: answer.partial,
        rows: answer.groups.into_iter().map(|group| row(&req, group)).collect(),
    };
    render(&view)
}

pub(super) fn row(req: &PageRequest, group: v1::ErrorGroup) -> Row {
    let operates = req.by.may(Operation::Operate, &group.task_type);
    Row { operates, error: first_line(&group.example_error, 300), group }
}
