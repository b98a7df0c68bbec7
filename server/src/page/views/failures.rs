//! Failed jobs in groups with the same error.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1;

use crate::{
    access::Operation,
    page::{
        Trouble, Visit,
        layout::{Layout, shown},
        words::{When, first_line, number},
    },
};

/// The most groups.
const MOST: i32 = 100;

#[derive(Template)]
#[template(path = "failures.html")]
struct View {
    layout: Layout,
    task_type: String,
    types: Vec<String>,
    /// Whether groups were looked for.
    looked: bool,
    /// Whether there is no such type.
    unknown: bool,
    partial: bool,
    rows: Vec<Row>,
}

struct Row {
    task_type: String,
    group: String,
    dead: String,
    backing_off: String,
    last: Option<When>,
    first: Option<When>,
    example: i64,
    error: String,
    operates: bool,
    any_dead: bool,
}

/// The groups of one type, or of all.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let task_type = visit.params.get("type").to_owned();
    let looked = !task_type.is_empty() || visit.by.may_everywhere(Operation::Read);
    let answer = if looked {
        let request = v1::ListErrorGroupsRequest { task_type: task_type.clone(), page_size: MOST };
        visit.calls().list_error_groups(&visit.by, request).await?.into_inner()
    } else {
        v1::ListErrorGroupsResponse::default()
    };
    let types = visit.calls().counted_types(&visit.by).await?.types.into_iter().map(|view| view.name);
    let view = View {
        layout: visit.layout("failures"),
        types: types.take(200).collect(),
        unknown: answer.groups.is_empty() && !task_type.is_empty() && visit.is_unknown(&task_type).await,
        task_type,
        looked,
        partial: answer.partial,
        rows: answer.groups.into_iter().map(|group| row(&visit, group)).collect(),
    };
    shown(&view)
}

fn row(visit: &Visit, group: v1::ErrorGroup) -> Row {
    Row {
        operates: visit.by.may(Operation::Operate, &group.task_type),
        any_dead: group.dead_count > 0,
        dead: number(group.dead_count),
        backing_off: number(group.backing_off_count),
        last: When::of(group.last_failure_time),
        first: When::of(group.first_failure_time),
        example: group.example_job_id,
        error: first_line(&group.example_error, 300),
        task_type: group.task_type,
        group: group.error_group,
    }
}
