//! Measures how fast workers run jobs that were ready before the workers connected.

use super::{Bench, steady::describe};
use crate::{
    error::Result,
    load::Trial,
    report::{Bar, Row},
};

const JOBS: u64 = 500_000;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let environment = bench.environment().await?;
    let (plan, jobs) = (bench.plan(1), bench.args.jobs(JOBS));
    let mut trial = Trial::new(&environment, plan.clone())?;
    trial.preload(jobs, &Bar::new("drain: enqueueing", jobs as f64)).await?;
    environment.settle_down().await;

    let bar = Bar::new("drain", jobs as f64);
    // All jobs are due now, so the latency of a job depends on its position in the queue.
    let began = trial.begin();
    trial.connect_workers().await?;
    let span = trial.measure_until(began, jobs, &bar).await?;
    trial.finish().await?;
    trial.dismiss().await?;

    let mut row = Row::from_span("drain", "", span);
    row.latencies = Some(trial.take_latencies());
    describe(&mut row, &plan, &environment);
    row.faults = trial.faults(0);
    drop(trial);
    bench.tear_down(environment).await?;
    Ok(vec![row])
}
