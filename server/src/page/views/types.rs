//! Lists task types with their job counts. The user can sort the list.

use std::cmp::Reverse;

use askama::Template;
use axum::response::Response;

use super::parts::TypeRow;
use crate::page::{
    PageError, PageRequest,
    layout::{Layout, render},
    params::query,
    words::{counted, span},
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
