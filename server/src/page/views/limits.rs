//! Limits: which types have them, and the limit keys of one type that wait or are paused.

use askama::Template;
use axum::response::Response;
use howdah_proto::v1;

use crate::{
    access::Operation,
    page::{
        Trouble, Visit,
        layout::{Layout, shown},
        params::query,
        words::{When, number},
    },
};

/// Keys on a page, and the most types.
const PAGE: i32 = 100;

#[derive(Template)]
#[template(path = "limits.html")]
struct View {
    layout: Layout,
    /// Types with limits, and what those are.
    types: Vec<(String, String)>,
    task_type: String,
    keys: Vec<Row>,
    /// Whether there is no such type.
    unknown: bool,
    operates: bool,
    next: String,
}

struct Row {
    key: String,
    waiting: String,
    running: String,
    paused: bool,
    until: Option<When>,
}

/// The limits of all types, or the keys of one.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let task_type = visit.params.get("type").to_owned();
    let (mut keys, mut next) = (Vec::new(), String::new());
    if !task_type.is_empty() {
        let page_token = visit.params.get("page").to_owned();
        let request = v1::ListLimitKeysRequest { task_type: task_type.clone(), page_size: PAGE, page_token };
        let answer = visit.calls().list_limit_keys(&visit.by, request).await?.into_inner();
        keys = answer.limit_keys.into_iter().map(row).collect();
        if !answer.next_page_token.is_empty() {
            next = query([("type", &*task_type), ("page", &answer.next_page_token)]);
        }
    }
    let types = visit.calls().counted_types(&visit.by).await?.types.into_iter();
    let types = types.filter_map(|view| Some((view.name, view.settings.as_ref().and_then(told)?)));
    let view = View {
        layout: visit.layout("limits"),
        types: types.take(PAGE as usize).collect(),
        unknown: keys.is_empty() && !task_type.is_empty() && visit.is_unknown(&task_type).await,
        operates: visit.by.may(Operation::Operate, &task_type),
        task_type,
        keys,
        next,
    };
    shown(&view)
}

fn row(key: v1::LimitKey) -> Row {
    Row {
        waiting: if key.waiting_count >= 1_000 { "1,000 or more".into() } else { number(key.waiting_count) },
        running: number(key.running_count),
        paused: key.paused,
        until: When::of(key.paused_until),
        key: key.limit_key,
    }
}

/// The limits among some settings; `None`: there are none.
fn told(settings: &v1::TaskTypeSettings) -> Option<String> {
    let mut parts = Vec::new();
    if settings.max_running > 0 {
        parts.push(format!("{} at once", number(settings.max_running.into())));
    }
    parts.extend(settings.rate.as_ref().map(|rate| format!("{} a second", rate.per_second)));
    if settings.key_max_running > 0 {
        parts.push(format!("{} of a key at once", number(settings.key_max_running.into())));
    }
    parts.extend(settings.key_rate.as_ref().map(|rate| format!("{} a second of a key", rate.per_second)));
    (!parts.is_empty()).then(|| parts.join(", "))
}
