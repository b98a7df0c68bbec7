//! The overview of the page: job counts by state, and task types that need attention.

use std::time::{Duration, SystemTime};

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;

use super::parts::TypeRow;
use crate::page::{
    PageError, PageRequest,
    layout::{Layout, render},
    words::{State, number, span},
};

/// Maximum number of task types in each list of the overview.
const MOST: usize = 12;

#[derive(Template)]
#[template(path = "overview.html")]
struct View {
    layout: Layout,
    /// Reason why the broker is not ready; empty if it is ready.
    problem: String,
    /// Stores that are closed to new jobs.
    closed: Vec<String>,
    totals: Vec<(State, String)>,
    types: usize,
    /// Task types with jobs to run, most jobs first.
    busy: Vec<TypeRow>,
    /// Task types with dead jobs, most dead jobs first.
    dead: Vec<TypeRow>,
    paused: Vec<String>,
    age: String,
    /// Time of the job counts in the tables. Only the tiles refresh automatically; the tables do not. Empty if there
    /// are no counts.
    as_of: String,
    cut: bool,
}

/// Renders the overview.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let counted = req.calls().counted_types(&req.by).await?;
    let mut rows: Vec<TypeRow> = counted.types.into_iter().map(TypeRow::new).collect();
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
    let (unreachable, closed) = req.calls().troubled_stores();
    let view = View {
        layout: req.layout("overview"),
        // Omits the readiness problem while a store is unreachable: the layout already shows a warning, and the broker
        // still serves the other stores.
        problem: if unreachable.is_empty() { req.readiness().await.err().unwrap_or_default() } else { String::new() },
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
    render(&view)
}

/// Formats the time at which counts of this age were made.
fn as_of(age: Duration) -> String {
    let at = Timestamp::try_from(SystemTime::now() - age);
    at.map(|at| at.strftime("%H:%M:%S UTC").to_string()).unwrap_or_default()
}

fn named(rows: &[TypeRow], names: &[String]) -> Vec<TypeRow> {
    names.iter().filter_map(|name| rows.iter().find(|row| row.name == *name).cloned()).collect()
}
