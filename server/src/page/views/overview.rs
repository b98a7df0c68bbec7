//! What there is at a glance: numbers by state, the types that need somebody.

use std::time::{Duration, SystemTime};

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;

use super::parts::TypeRow;
use crate::page::{
    Trouble, Visit,
    layout::{Layout, shown},
    words::{State, number, span},
};

/// The most types of each list.
const MOST: usize = 12;

#[derive(Template)]
#[template(path = "overview.html")]
struct View {
    layout: Layout,
    /// Why the broker is not ready; empty: it is.
    problem: &'static str,
    /// Those of several stores that take no new jobs.
    closed: Vec<String>,
    totals: Vec<(State, String)>,
    types: usize,
    /// Types with jobs to run, the most first.
    busy: Vec<TypeRow>,
    /// Types with dead jobs, the most first.
    dead: Vec<TypeRow>,
    paused: Vec<String>,
    age: String,
    /// When they were counted: the tables stand still while the tiles change. Empty: they were not.
    as_of: String,
    cut: bool,
}

/// The first view.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let counted = visit.calls().counted_types(&visit.by).await?;
    let mut rows: Vec<TypeRow> = counted.types.into_iter().map(TypeRow::of).collect();
    let types = rows.len();
    let mut totals = super::parts::counts(howdah_proto::v1::TaskTypeCounts::default());
    for row in &rows {
        for (total, (_, count)) in totals.iter_mut().zip(row.counts) {
            total.1 += count;
        }
    }
    let paused = rows.iter().filter(|row| row.paused).map(|row| row.name.clone()).collect();
    let of = |row: &TypeRow, at: usize| row.counts[at].1;
    let is_dead = |row: &TypeRow| of(row, 4) > 0;
    rows.sort_by_key(|row| std::cmp::Reverse(of(row, 4)));
    let dead_names: Vec<String> =
        rows.iter().filter(|row| is_dead(row)).take(MOST).map(|row| row.name.clone()).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(of(row, 0) + of(row, 1)), row.name.clone()));
    let busy_names: Vec<String> =
        rows.iter().filter(|row| row.total() > of(row, 4)).take(MOST).map(|row| row.name.clone()).collect();
    let (away, closed) = visit.calls().troubled_stores();
    let view = View {
        layout: visit.layout("overview"),
        // With several stores, a broker serves the others.
        problem: if away.is_empty() { visit.readiness().await.err().unwrap_or_default() } else { "" },
        closed: closed.into_iter().map(str::to_owned).collect(),
        totals: totals.into_iter().map(|(word, count)| (State { word }, number(count))).collect(),
        types,
        busy: named(&rows, &busy_names),
        dead: named(&rows, &dead_names),
        paused,
        age: counted.age.map(span).unwrap_or_default(),
        as_of: counted.age.map(as_of).unwrap_or_default(),
        cut: counted.cut,
    };
    shown(&view)
}

/// The time so long ago.
fn as_of(age: Duration) -> String {
    let at = Timestamp::try_from(SystemTime::now() - age);
    at.map(|at| at.strftime("%H:%M:%S UTC").to_string()).unwrap_or_default()
}

fn named(rows: &[TypeRow], names: &[String]) -> Vec<TypeRow> {
    names.iter().filter_map(|name| rows.iter().find(|row| row.name == *name).cloned()).collect()
}
