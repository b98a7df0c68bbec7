//! Measures many connected workers, of which few get jobs.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{Bench, only_type, steady::Steady};
use crate::{
    environment::{Database, Environment},
    error::Result,
    load::{Plan, Trial, WorkerKind},
    report::{Bar, Row, megabytes, rounded},
};

const SECONDS: u64 = 20;
const STREAMS: [usize; 2] = [1_000, 10_000];
/// One in this many workers gets jobs.
const ACTIVE: usize = 100;
/// Number of task types that idle workers share.
const IDLE_TYPES: usize = 100;
/// Pause between connecting and measuring. Idle sessions of Postgres report their counters after ten seconds, so that the cost
/// of connecting does not fall into the measurement.
const HUSH: Duration = Duration::from_secs(12);
/// Duration of the idle measurement, enough for many polls of a broker.
const IDLE: Duration = Duration::from_secs(30);

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for streams in STREAMS {
        let environment = bench.environment().await?;
        let (mut plan, idle) = (bench.plan(1), idle(bench, streams - streams / ACTIVE));
        plan.workers = streams / ACTIVE;
        plan.window = (plan.in_flight * 2 / plan.workers).max(1);
        plan.types = only_type(&plan);
        let case = format!("{streams} workers");
        let (demand, time) = (bench.closed(), bench.args.time(SECONDS));
        let mut trial = Trial::new(&environment, plan.clone())?;
        {
            let _bar = Bar::spinner(format!("streams: connecting {streams}"));
            trial.connect_idle(&idle).await?;
        }
        let at_rest = at_rest(bench, &environment, IDLE).await?;
        let mut row = Steady { workload: "streams", case, plan, demand, time }.run_in(&mut trial).await?;
        trial.dismiss().await?;
        row.faults = trial.faults(0);
        row.fact("streams", streams);
        for (name, value) in at_rest {
            row.fact(name, value);
        }
        rows.push(row);
        drop(trial);
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}

fn idle(bench: &mut Bench, workers: usize) -> Plan {
    let plan = bench.plan(IDLE_TYPES);
    Plan { workers, types_per_worker: 1, window: 1, kind: WorkerKind::Raw, ..plan }
}

/// Measures the cost of idle workers.
async fn at_rest(bench: &Bench, environment: &Environment, time: Duration) -> Result<Vec<(&'static str, f64)>> {
    let mut facts = Vec::new();
    if let Some(resident) = environment.resident() {
        facts.push(("idle_rss_mb", rounded(megabytes(resident), 1)));
    }
    // Query from another database, so that the query itself is not counted.
    let (Some(database), Some(url)) = (&environment.database, bench.setting.database_url()) else { return Ok(facts) };
    let _bar = Bar::spinner("streams: at rest");
    let other = Database::connect(url).await?;
    sleep(HUSH).await;
    let (began, before) = (Instant::now(), other.commits(database.name()).await?);
    sleep(time).await;
    let commits = other.commits(database.name()).await? - before;
    facts.push(("idle_statements_per_s", rounded(commits as f64 / began.elapsed().as_secs_f64(), 2)));
    Ok(facts)
}
