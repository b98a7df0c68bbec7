//! Compares many tenants with fair keys to another design on the same Postgres: one table per tenant, with the statements in
//! `bench/sql/tenants.sql`. Both designs take jobs in one at a time, hand them out in batches, and do both at once. All connections
//! are open and warm before the measurement, and the designs are measured in turn.

mod jobs; // Howdah's design
mod tables; // one table per tenant

use std::time::Duration;

use self::{jobs::Jobs, tables::Tables};
use super::Bench;
use crate::{
    error::Result,
    load::Span,
    report::{Row, rounded},
};

/// Seconds per case, over all rounds.
const SECONDS: u64 = 20;
/// Warm-up at the start of each time slice that enqueues jobs.
const WARM_UP: Duration = Duration::from_secs(2);
/// Number of connections that enqueue jobs.
const CALLERS: usize = 64;
const MOVERS: usize = 32;
/// `max_connections` of Postgres: two per caller, one per mover, and the brokers' connections.
pub(super) const MAX_CONNECTIONS: u32 = 300;
/// Jobs in the backlog at the start of an `Out` slice.
const WAITING: u64 = 500_000;

/// Work that a case measures: enqueueing (`In`), settling (`Out`), or both at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
    Both,
}

/// Design, and for Howdah the interface, that a case measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Design {
    Tables,
    Grpc,
    Stream,
    Sql,
}

/// The cases with their names. The first case of each direction (`In`, `Out`, `Both`) is the baseline of the other cases of this
/// direction.
const CASES: [(Direction, Design, &str); 8] = [
    (Direction::In, Design::Tables, "in, a table a tenant"),
    (Direction::In, Design::Grpc, "in"),
    (Direction::In, Design::Stream, "in, one stream"),
    (Direction::In, Design::Sql, "in, by SQL"),
    (Direction::Out, Design::Tables, "out, a table a tenant"),
    (Direction::Out, Design::Grpc, "out"),
    (Direction::Both, Design::Tables, "both, a table a tenant"),
    (Direction::Both, Design::Grpc, "both"),
];

/// Sizes and durations of the time slices.
#[derive(Clone, Copy, Debug)]
struct Extent {
    tenants: u32,
    payload: usize,
    /// Duration of a slice without its warm-up.
    time: Duration,
    /// Duration of the warm-up, at most the duration of the slice.
    warm_up: Duration,
    waiting: u64,
}

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let time = bench.args.time(SECONDS) / bench.args.rounds;
    let (tenants, payload) = (bench.args.tenants, bench.args.payload);
    let extent = Extent { tenants, payload, time, warm_up: WARM_UP.min(time), waiting: bench.args.jobs(WAITING) };
    let tables = Tables::start(bench, extent).await?;
    let jobs = Jobs::start(bench, extent).await?;
    // Boxes the future, because it contains both environments and is too large to be part of another future.
    Box::pin(compare(tables, jobs, extent, bench)).await
}

async fn compare(mut tables: Tables, mut jobs: Jobs, extent: Extent, bench: &Bench) -> Result<Vec<Row>> {
    let mut slices: [Vec<Span>; CASES.len()] = Default::default();
    let rounds = bench.args.rounds as usize;
    for round in 0..rounds {
        for direction in [Direction::In, Direction::Out, Direction::Both] {
            let cases: Vec<usize> = (0..CASES.len()).filter(|&case| CASES[case].0 == direction).collect();
            for step in 0..cases.len() {
                // Rotate the order of the cases in each round, so that no case is always first.
                let case = cases[(round + step) % cases.len()];
                let (_, design, name) = CASES[case];
                let message = format!("tenants: {name}, round {} of {rounds}", round + 1);
                let span = match design {
                    Design::Tables => tables.measure(direction, &message).await?,
                    design => jobs.measure(direction, design, &message).await?,
                };
                slices[case].push(span);
            }
        }
    }
    let brokers = jobs.brokers();
    let mut faults = [tables.faults(), jobs.faults()];
    tables.stop(bench).await?;
    jobs.stop(bench).await?;
    let each: Vec<Vec<f64>> = slices.iter().map(|slices| slices.iter().map(Span::rate).collect()).collect();
    let mut rows = Vec::new();
    for (case, slices) in slices.into_iter().enumerate() {
        let (direction, design, name) = CASES[case];
        let Some(span) = Span::all(slices) else { continue };
        let mut row = Row::from_span("tenants", name, span);
        row.fact("tenants", extent.tenants);
        row.fact("payload", extent.payload);
        let first = CASES.iter().position(|first| first.0 == direction).unwrap_or_default();
        if case != first {
            let ratios: Vec<f64> =
                each[case].iter().zip(&each[first]).map(|(rate, first)| rounded(rate / first, 3)).collect();
            row.fact("of_tables", median(&ratios));
            row.fact("of_tables_each", ratios);
            row.fact("brokers", brokers);
        }
        match direction {
            Direction::In | Direction::Both => row.fact("producers", CALLERS),
            Direction::Out => row.fact("waiting", extent.waiting),
        }
        // Errors are counted over all directions, and reported once per design.
        if direction == Direction::In && matches!(design, Design::Tables | Design::Grpc) {
            row.faults = std::mem::take(&mut faults[usize::from(design == Design::Grpc)]);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Median of the finite values. In a very short slice no job may be settled.
fn median(values: &[f64]) -> f64 {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
