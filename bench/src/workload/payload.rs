//! Measures payloads of several sizes, and the write amplification per byte.

use super::{Bench, steady::Steady};
use crate::{
    environment::Environment,
    error::Result,
    load::Trial,
    report::{Row, rounded},
};

const SECONDS: u64 = 20;
const SIZES: [(usize, &str); 3] = [(64, "64 B"), (1 << 10, "1 KiB"), (64 << 10, "64 KiB")];
/// Maximum payload bytes per enqueue request.
const REQUEST: usize = 1 << 20;
/// Maximum payload bytes of unsettled jobs.
const IN_FLIGHT: usize = 64 << 20;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (bytes, case) in SIZES {
        let environment = bench.environment().await?;
        let mut plan = bench.plan(1);
        plan.payload = bytes;
        plan.batch = plan.batch.min(REQUEST / bytes);
        plan.in_flight = plan.in_flight.min(IN_FLIGHT / bytes);
        let (demand, time) = (bench.closed(), bench.args.time(SECONDS));
        let before = wal(&environment).await?;
        let steady = Steady { workload: "payload", case: case.into(), plan, demand, time };
        let mut trial = Trial::new(&environment, steady.plan.clone())?;
        let mut row = steady.run_in(&mut trial).await?;
        trial.dismiss().await?;
        row.faults = trial.faults(0);
        if let (Some(before), Some(after)) = (before, wal(&environment).await?) {
            // Covers the whole life of each job, from the first enqueue to the last ack.
            let written = (after - before) as f64 / (trial.settled().max(1) * bytes as u64) as f64;
            row.fact("wal_bytes_per_payload_byte", rounded(written, 3));
            row.fact("payload_mb_per_s", rounded(row.jobs_per_s * bytes as f64 / 1e6, 2));
        }
        rows.push(row);
        drop(trial);
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}

async fn wal(environment: &Environment) -> Result<Option<i64>> {
    match &environment.database {
        Some(database) => Ok(Some(database.wal_bytes().await?)),
        None => Ok(None),
    }
}
