//! Measures producers and workers together, in a closed loop.

use super::{Bench, steady::Steady};
use crate::{error::Result, report::Row};

const SECONDS: u64 = 60;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    Ok(vec![measure(bench, "cycle", bench.args.time(SECONDS)).await?])
}

/// Measures the cycle workload; other workloads also run it, as their baseline.
pub(super) async fn measure(bench: &mut Bench, workload: &'static str, time: std::time::Duration) -> Result<Row> {
    let environment = bench.environment().await?;
    let case = if workload == "cycle" { String::new() } else { "cycle alone".to_owned() };
    let (plan, demand) = (bench.plan(1), bench.closed());
    let row = Steady { workload, case, plan, demand, time }.run(&environment).await?;
    bench.tear_down(environment).await?;
    Ok(row)
}
