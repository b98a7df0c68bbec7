//! The overview of the page: job counts by state, the last hour, the largest error groups, and task types that need
//! attention.

mod last_hour; // plots

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use askama::Template;
use axum::response::Response;
use howdah_engine::access::Operation;
use howdah_proto::v1;
use jiff::Timestamp;
use tokio::time::timeout;
use tonic::Status;

use super::{failures, parts::TypeRow};
use crate::{
    api::verbs::ListErrorGroups,
    page::{
        PageError, PageRequest,
        layout::{Layout, render},
        plot::Plot,
        words::{self, State, number, span},
    },
};

/// Maximum number of task types in each list of the overview.
const MOST: usize = 12;
/// Maximum number of error groups.
const MOST_GROUPS: i32 = 5;
/// Maximum number of dead jobs whose errors the overview groups. Grouping this many takes some 100 ms.
const MOST_DEAD: i64 = 200_000;
/// Time limit for figures that are read from the database. The overview is shown without the figures that take longer.
const WITHIN: Duration = Duration::from_secs(2);

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
    /// Task types with ready jobs that no worker takes.
    no_worker: Vec<TypeRow>,
    plots: Vec<Plot>,
    /// Largest error groups.
    fails: Vec<failures::Row>,
    /// Whether figures are missing, because the database has not answered in time.
    missing: bool,
    age: String,
    /// Time of the job counts in the tables. Only the tiles refresh automatically; the tables do not. Empty if there
    /// are no counts.
    as_of: String,
    cut: bool,
}

/// Renders the overview.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let counted = req.calls().counted_types(&req.by).await?;
    let dead = counted.types.iter().map(|view| view.counts.unwrap_or_default().dead).sum();
    let read = Box::pin(Read::load(&req, dead)).await;
    let mut rows: Vec<TypeRow> = counted.types.into_iter().map(TypeRow::new).collect();
    for row in &mut rows {
        row.no_worker = read.without_workers.contains(&row.name);
    }
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
    let no_worker = rows.iter().filter(|row| row.no_worker).take(MOST).cloned().collect();
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
        no_worker,
        plots: read.plots,
        fails: read.fails,
        missing: read.missing,
        age: counted.age.map(span).unwrap_or_default(),
        as_of: counted.age.map(as_of).unwrap_or_default(),
        cut: counted.cut,
    };
    render(&view)
}

/// Figures that are read from the database.
#[derive(Default)]
struct Read {
    /// Names of the task types with ready jobs that no worker takes.
    without_workers: HashSet<String>,
    plots: Vec<Plot>,
    fails: Vec<failures::Row>,
    missing: bool,
}

impl Read {
    /// Reads the figures that the caller may read. `dead` is the number of dead jobs.
    async fn load(req: &PageRequest, dead: i64) -> Self {
        let reads_all = req.by.may_everywhere(Operation::Read);
        let first = last_hour::first_minute(SystemTime::now());
        let minutes =
            async { if reads_all { req.calls().minutes_of_all(&req.by, first).await } else { Ok(Vec::new()) } };
        let groups = async {
            if !reads_all || dead > MOST_DEAD {
                return Ok(Vec::new());
            }
            let request = v1::ListErrorGroupsRequest { page_size: MOST_GROUPS, ..Default::default() };
            Ok(req.calls().call::<ListErrorGroups>(&req.by, request).await?.into_inner().groups)
        };
        let (without_workers, minutes, groups) =
            tokio::join!(in_time(req.calls().types_without_workers(&req.by)), in_time(minutes), in_time(groups));
        Self {
            missing: without_workers.is_none() || minutes.is_none() || groups.is_none(),
            without_workers: without_workers.unwrap_or_default(),
            plots: last_hour::plots(&minutes.unwrap_or_default(), first),
            fails: groups.unwrap_or_default().into_iter().map(|group| failures::row(req, group)).collect(),
        }
    }
}

/// Returns the result; `None` if the read failed, or was not finished in time.
async fn in_time<T>(read: impl Future<Output = Result<T, Status>>) -> Option<T> {
    timeout(WITHIN, read).await.ok()?.ok()
}

/// Formats the time at which counts of this age were made.
fn as_of(age: Duration) -> String {
    let at = Timestamp::try_from(SystemTime::now() - age);
    at.map(|at| at.strftime("%H:%M:%S UTC").to_string()).unwrap_or_default()
}

fn named(rows: &[TypeRow], names: &[String]) -> Vec<TypeRow> {
    names.iter().filter_map(|name| rows.iter().find(|row| row.name == *name).cloned()).collect()
}
