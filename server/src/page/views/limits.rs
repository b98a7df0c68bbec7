//! Lists task types with limits, and the limit keys of one task type that have waiting jobs, are paused or have their own
//! limit.

use askama::Template;
use axum::response::Response;
use howdah_engine::access::Operation;
use howdah_proto::v1;

use crate::{
    api::verbs::ListLimitKeys,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        params::next_page,
        words::{self, number},
    },
};

/// Maximum number of limit keys, and of task types, per page.
const PAGE: i32 = 100;

#[derive(Template)]
#[template(path = "limits.html")]
struct View {
    layout: Layout,
    /// Task types with limits, and a description of these limits.
    types: Vec<(String, String)>,
    task_type: String,
    keys: Vec<v1::LimitKey>,
    /// Whether the task type does not exist.
    unknown: bool,
    operates: bool,
    next: String,
}

/// Renders the limits of all task types, or the limit keys of one task type.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let task_type = req.params.get("type").to_owned();
    let (mut keys, mut next) = (Vec::new(), String::new());
    if !task_type.is_empty() {
        let page_token = req.params.get("page").to_owned();
        let request = v1::ListLimitKeysRequest { task_type: task_type.clone(), page_size: PAGE, page_token };
        let answer = req.calls().call::<ListLimitKeys>(&req.by, request).await?.into_inner();
        keys = answer.limit_keys;
        next = next_page([("type", &*task_type)], &answer.next_page_token);
    }
    let types = req.calls().counted_types(&req.by).await?.types.into_iter();
    let types = types.filter_map(|view| Some((view.name, view.settings.as_ref().and_then(describe)?)));
    let view = View {
        layout: req.layout("limits"),
        types: types.take(PAGE as usize).collect(),
        unknown: keys.is_empty() && req.is_unknown(&task_type).await,
        operates: req.by.may(Operation::Operate, &task_type),
        task_type,
        keys,
        next,
    };
    render(&view)
}

/// Returns the limits in a type's settings; `None` if the type has no limits.
fn describe(settings: &v1::TaskTypeSettings) -> Option<String> {
    let mut parts = Vec::new();
    if settings.max_running > 0 {
        parts.push(format!("{} running", number(settings.max_running.into())));
    }
    parts.extend(settings.rate.as_ref().map(|rate| format!("{} starts per second", rate.per_second)));
    if settings.key_max_running > 0 {
        parts.push(format!("{} running per key", number(settings.key_max_running.into())));
    }
    parts.extend(settings.key_rate.as_ref().map(|rate| format!("{} starts per second per key", rate.per_second)));
    (!parts.is_empty()).then(|| parts.join(", "))
}
