//! Measures the time from the due time of a job to its handler, at fixed rates, in an open loop.

use std::time::{Duration, Instant};

use super::{Bench, cycle, steady::describe};
use crate::{
    error::Result,
    floor,
    load::Trial,
    report::{Bar, Row},
};

const SECONDS: u64 = 20;
/// Jobs per second.
const RATES: [f64; 2] = [100.0, 1_000.0];
/// Duration of the measurement of commits alone.
const FLOOR: Duration = Duration::from_secs(5);
/// Duration of the measurement of `cycle`, whose rate is halved for one case. Skipped if `cycle` is part of the run.
const CYCLE: Duration = Duration::from_secs(10);

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let time = bench.args.time(SECONDS);
    let full = match bench.cycle_rate {
        Some(rate) => rate,
        None => cycle::measure(bench, "latency", time.min(CYCLE)).await?.jobs_per_s,
    };
    let mut rows = Vec::new();
    for rate in RATES {
        rows.push(at_rate(bench, rate, format!("{rate}/s"), time).await?);
    }
    rows.push(at_rate(bench, (full / 2.0).floor(), "half of cycle".into(), time).await?);
    Ok(rows)
}

async fn at_rate(bench: &mut Bench, per_second: f64, case: String, time: Duration) -> Result<Row> {
    let environment = bench.environment().await?;
    let plan = bench.plan(1);
    let mut trial = Trial::new(&environment, plan.clone())?;
    trial.connect_workers().await?;
    let bar = Bar::new(format!("latency {case}"), time.as_secs_f64());
    // The first tenth is the warm-up.
    let warm_up = time / 10;
    let (began, seconds) = (Instant::now(), (warm_up + time).as_secs_f64());
    let sent = trial.produce_at(per_second, seconds).await?;
    trial.warm_up(warm_up).await?;
    let span = trial.measure((began + warm_up + time).saturating_duration_since(Instant::now()), &bar).await?;
    // A measurement that ends does not end the schedule: jobs that the sender has not sent yet were due in time, and count.
    trial.finish().await?;
    trial.dismiss().await?;
    let mut row = Row::from_span("latency", case, span);
    row.latencies = Some(trial.take_latencies());
    row.faults = trial.faults(0);
    row.fact("rate", per_second);
    row.fact("sent", sent);
    describe(&mut row, &plan, &environment);
    drop(trial);
    if RATES.contains(&per_second) {
        floor::add_commit_times(&mut row, environment.database.as_ref(), per_second, time.min(FLOOR)).await?;
    }
    bench.tear_down(environment).await?;
    Ok(row)
}
