//! Many tenants whose jobs take turns (fair keys), beside another way of doing it on the same Postgres: a table a tenant, of
//! which `bench/sql/tenants.sql` has the statements. Both get their jobs one at a time, hand them on in batches, and do both at once.
//! All connections are there, and warm, before anything is measured; the ways take turns.

mod jobs; // Howdah's way
mod tables; // a table a tenant

use std::time::Duration;

use self::{jobs::Jobs, tables::Tables};
use super::{
    Bench,
    turns::{median, rates},
};
use crate::{
    error::Result,
    load::Span,
    report::{Row, rounded},
};

/// Odd, so that one of them is the median.
const ROUNDS: u32 = 5;
/// Seconds of each case, all rounds together.
const SECONDS: u64 = 20;
/// Not measured, at the beginning of each slice in which jobs come in.
const WARM_UP: Duration = Duration::from_secs(2);
/// Connections that jobs come from, and with which tables hand them on.
const CALLERS: usize = 64;
const MOVERS: usize = 32;
/// Two for each caller, one for each mover, and those of brokers.
pub(super) const MAX_CONNECTIONS: u32 = 300;
/// What waits when it is measured how fast jobs are handed on.
const WAITING: u64 = 500_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    In,
    Out,
    Both,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tables,
    Grpc,
    Stream,
    Sql,
}

/// The first of each part is what the others are compared with.
const CASES: [(Part, Way); 8] = [
    (Part::In, Way::Tables),
    (Part::In, Way::Grpc),
    (Part::In, Way::Stream),
    (Part::In, Way::Sql),
    (Part::Out, Way::Tables),
    (Part::Out, Way::Grpc),
    (Part::Both, Way::Tables),
    (Part::Both, Way::Grpc),
];

fn name((part, way): (Part, Way)) -> &'static str {
    match (part, way) {
        (Part::In, Way::Tables) => "in, a table a tenant",
        (Part::In, Way::Grpc) => "in",
        (_, Way::Stream) => "in, one stream",
        (_, Way::Sql) => "in, by SQL",
        (Part::Out, Way::Tables) => "out, a table a tenant",
        (Part::Out, Way::Grpc) => "out",
        (Part::Both, Way::Tables) => "both, a table a tenant",
        (Part::Both, Way::Grpc) => "both",
    }
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
struct Extent {
    tenants: u32,
    payload: usize,
    /// Of a slice.
    time: Duration,
    /// At most as long as the slice.
    warm_up: Duration,
    waiting: u64,
}

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let time = bench.args.time(SECONDS) / bench.args.rounds(ROUNDS);
    let (tenants, payload) = (bench.args.tenants, bench.args.payload);
    let extent = Extent { tenants, payload, time, warm_up: WARM_UP.min(time), waiting: bench.args.jobs(WAITING) };
    let tables = Tables::start(bench, extent).await?;
    let jobs = Jobs::start(bench, extent).await?;
    // It holds both environments, which is much for a future inside of others.
    Box::pin(turns(tables, jobs, extent, bench)).await
}

async fn turns(mut tables: Tables, mut jobs: Jobs, extent: Extent, bench: &Bench) -> Result<Vec<Row>> {
    let mut slices: [Vec<Span>; CASES.len()] = Default::default();
    let rounds = bench.args.rounds(ROUNDS) as usize;
    for round in 0..rounds {
        for part in [Part::In, Part::Out, Part::Both] {
            let cases: Vec<usize> = (0..CASES.len()).filter(|&case| CASES[case].0 == part).collect();
            for turn in 0..cases.len() {
                // None is always the first.
                let case = cases[(round + turn) % cases.len()];
                let what = format!("tenants: {}, round {} of {rounds}", name(CASES[case]), round + 1);
                let span = match CASES[case] {
                    (part, Way::Tables) => tables.measure(part, &what).await?,
                    (part, way) => jobs.measure(part, way, &what).await?,
                };
                slices[case].push(span);
            }
        }
    }
    let brokers = jobs.brokers();
    let mut faults = [tables.faults(), jobs.faults()];
    tables.stop(bench).await?;
    jobs.stop(bench).await?;
    let each: Vec<Vec<f64>> = slices.iter().map(|slices| rates(slices)).collect();
    let mut rows = Vec::new();
    for (case, slices) in slices.into_iter().enumerate() {
        let (part, way) = CASES[case];
        let Some(span) = Span::all(slices) else { continue };
        let mut row = Row::of("tenants", name(CASES[case]), span);
        row.fact("tenants", extent.tenants);
        row.fact("payload", extent.payload);
        let first = CASES.iter().position(|first| first.0 == part).unwrap_or_default();
        if case != first {
            let ratios: Vec<f64> =
                each[case].iter().zip(&each[first]).map(|(rate, first)| rounded(rate / first, 3)).collect();
            row.fact("of_tables", median(&ratios));
            row.fact("of_tables_each", ratios);
            row.fact("brokers", brokers);
        }
        match part {
            Part::In | Part::Both => row.fact("producers", CALLERS),
            Part::Out => row.fact("waiting", extent.waiting),
        }
        // They are counted over all parts, and told once for each way.
        if part == Part::In && matches!(way, Way::Tables | Way::Grpc) {
            row.faults = std::mem::take(&mut faults[usize::from(way == Way::Grpc)]);
        }
        rows.push(row);
    }
    Ok(rows)
}
