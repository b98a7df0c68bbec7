//! Measures one worker of the Rust client with 16, 64 and 256 handlers that take 1 ms each, while many jobs are ready. A handler
//! that waits for its next job is idle, so the rate shows the cost of the round trip to the broker.

use std::time::Duration;

use super::{Bench, steady::describe};
use crate::{
    error::Result,
    load::{Trial, WorkerKind},
    report::{Bar, Row, rounded},
};

const SLOTS: [usize; 3] = [16, 64, 256];
/// Jobs per handler, enough for some seconds.
const JOBS_PER_SLOT: u64 = 1_500;
const HANDLER: Duration = Duration::from_millis(1);

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for slots in SLOTS {
        let environment = bench.environment().await?;
        let (mut plan, jobs) = (bench.plan(1), bench.args.jobs(JOBS_PER_SLOT * slots as u64));
        (plan.workers, plan.window, plan.kind, plan.handler) = (1, slots, WorkerKind::Rust, HANDLER);
        let case = format!("{slots} handlers");
        let mut trial = Trial::new(&environment, plan.clone())?;
        trial.preload(jobs, &Bar::new(format!("slots {case}: enqueueing"), jobs as f64)).await?;
        environment.settle_down().await;
        let bar = Bar::new(format!("slots {case}"), jobs as f64);
        let began = trial.begin();
        trial.connect_workers().await?;
        let span = trial.measure_until(began, jobs, &bar).await?;
        trial.finish().await?;
        trial.dismiss().await?;
        let rate = span.rate();
        let mut row = Row::from_span("slots", case, span);
        row.latencies = Some(trial.take_latencies());
        describe(&mut row, &plan, &environment);
        // Mean time from a handler's start of one job to its start of the next job.
        row.fact("ms_per_job_of_a_handler", rounded(slots as f64 * 1e3 / rate.max(1e-9), 3));
        row.faults = trial.faults(0);
        drop(trial);
        bench.tear_down(environment).await?;
        rows.push(row);
    }
    Ok(rows)
}
