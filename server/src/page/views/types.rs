//! The task types with their numbers of jobs, sorted as one likes.

use std::cmp::Reverse;

use askama::Template;
use axum::response::Response;

use super::parts::TypeRow;
use crate::page::{
    Trouble, Visit,
    layout::{Layout, shown},
    params::query,
    words::{counted, span},
};

/// Types on a page.
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
    /// The query of the page before, and of the next one; empty: there is none.
    before: String,
    next: String,
}

/// What they can be sorted by, besides the name.
const SORTS: [&str; 8] = ["name", "total", "ready", "leased", "scheduled", "waiting", "dead", "oldest"];

/// The list.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let known = visit.calls().counted_types(&visit.by).await?;
    let q = visit.params.get("q").to_owned();
    let sort = SORTS.into_iter().find(|sort| *sort == visit.params.get("sort")).unwrap_or("name");
    let first: usize = visit.params.number("from")?.unwrap_or_default();
    let rows = known.types.into_iter().map(TypeRow::of).filter(|row| row.name.contains(&q));
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
    let view = View {
        layout: visit.layout("types"),
        rows: rows.into_iter().skip(first).take(PAGE).collect(),
        found: counted(found as i64, "type"),
        age: known.age.map(span).unwrap_or_default(),
        cut: known.cut,
        q,
        sort,
        before,
        next,
    };
    shown(&view)
}
