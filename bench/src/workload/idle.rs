//! Measures the cost of brokers and Postgres while workers wait without jobs.

use std::time::Duration;

use super::Bench;
use crate::{
    error::Result,
    load::{Plan, Trial, WorkerKind},
    report::{Bar, Row, rounded},
};

const WORKERS: [usize; 3] = [0, 100, 10_000];
/// Number of task types, shared by all workers.
const TYPES: usize = 100;
/// Pause between connecting and measuring. Idle sessions of Postgres report their counters after ten seconds, so a shorter
/// pause would add the cost of connecting to the measurement.
const HUSH: Duration = Duration::from_secs(12);
const SECONDS: u64 = 60;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for workers in WORKERS {
        rows.push(at_rest(bench, workers).await?);
    }
    Ok(rows)
}

async fn at_rest(bench: &mut Bench, workers: usize) -> Result<Row> {
    let environment = bench.environment().await?;
    let plan = Plan { workers, window: 1, kind: WorkerKind::Raw, ..bench.plan(TYPES) };
    let mut trial = Trial::new(&environment, plan)?;
    {
        let _bar = Bar::spinner(format!("idle: connecting {workers}"));
        trial.connect_workers().await?;
        trial.warm_up(HUSH).await?;
    }
    let time = bench.args.time(SECONDS);
    let bar = Bar::new(format!("idle: {workers} workers"), time.as_secs_f64());
    let span = trial.measure(time, &bar).await?;
    let seconds = span.seconds.max(1e-9);
    let used = span.used;
    let mut row = Row::from_span("idle", format!("{workers} workers"), span);
    for (name, cpu) in ["idle_broker_cpu_s_per_min", "idle_postgres_cpu_s_per_min"].into_iter().zip(&used.cpu[1..]) {
        row.known(name, cpu.map(|cpu| rounded(cpu * 60.0 / seconds, 3)));
    }
    for (name, switches) in
        ["idle_broker_switches_per_s", "idle_postgres_switches_per_s"].into_iter().zip(used.switches)
    {
        row.known(name, switches.map(|switches| rounded(switches as f64 / seconds, 1)));
    }
    trial.dismiss().await?;
    row.faults = trial.tally.faults(0);
    drop(trial);
    bench.tear_down(environment).await?;
    Ok(row)
}
