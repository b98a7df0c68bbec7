//! Workloads whose jobs are ready before the workers connect: drain and slots.

use std::time::Duration;

use super::{Bench, steady::row};
use crate::{
    error::Result,
    load::{Plan, Trial, WorkerKind},
    report::{Bar, Row, rounded},
};

/// Jobs of the workload drain.
const JOBS: u64 = 500_000;
const SLOTS: [usize; 3] = [16, 64, 256];
/// Jobs per handler of the workload slots, enough for some seconds.
const JOBS_PER_SLOT: u64 = 1_500;
const HANDLER: Duration = Duration::from_millis(1);

/// Measures how fast workers run jobs that were ready before the workers connected.
pub(super) async fn drain(bench: &mut Bench) -> Result<Vec<Row>> {
    let (plan, jobs) = (bench.plan(1), bench.args.jobs(JOBS));
    Ok(vec![run(bench, "drain", String::new(), plan, jobs).await?])
}

/// Measures one worker of the Rust client with 16, 64 and 256 handlers that take 1 ms each, while many jobs are ready. A handler
/// that waits for its next job is idle, so the rate shows the cost of the round trip to the broker.
pub(super) async fn slots(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for slots in SLOTS {
        let jobs = bench.args.jobs(JOBS_PER_SLOT * slots as u64);
        let plan = Plan { workers: 1, window: slots, kind: WorkerKind::Rust, handler: HANDLER, ..bench.plan(1) };
        let mut row = run(bench, "slots", format!("{slots} handlers"), plan, jobs).await?;
        // Mean time from a handler's start of one job to its start of the next job.
        row.fact("ms_per_job_of_a_handler", rounded(slots as f64 * 1e3 / row.jobs_per_s.max(1e-9), 3));
        rows.push(row);
    }
    Ok(rows)
}

/// Enqueues jobs, then connects workers and measures until they have settled all jobs.
async fn run(bench: &mut Bench, workload: &'static str, case: String, plan: Plan, jobs: u64) -> Result<Row> {
    let environment = bench.environment().await?;
    let name = format!("{workload} {case}").trim_end().to_owned();
    let mut trial = Trial::new(&environment, plan)?;
    trial.preload(jobs, &Bar::new(format!("{name}: enqueueing"), jobs as f64)).await?;
    environment.settle_down().await;

    let bar = Bar::new(name, jobs as f64);
    // All jobs are due now, so the latency of a job depends on its position in the queue.
    let began = trial.begin();
    trial.connect_workers().await?;
    let span = trial.measure_until(began, jobs, &bar).await?;
    trial.finish().await?;
    trial.dismiss().await?;

    let mut row = row(&trial, workload, case, span);
    row.faults = trial.tally.faults(0);
    drop(trial);
    bench.tear_down(environment).await?;
    Ok(row)
}
