//! Measures how one principal is affected by another one that floods a broker. The same steady load is measured alone and during
//! the flood, in turn.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use super::{Bench, steady::describe};
use crate::{
    environment::{Environment, Guard},
    error::Result,
    load::{ALLOWED, Flood, Trial},
    report::{Bar, Row, rounded},
};

const ROUNDS: usize = 3;
const SECONDS: u64 = 20;
/// Jobs per second of the steady load: a quarter of the limit.
const RATE: f64 = ALLOWED as f64 / 4.0;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let environment = bench.setting.guarded(1, Guard::Limits).await?;
    let mut rows = Vec::new();
    for round in 0..ROUNDS {
        // The order alternates, because Postgres has not cached the tables yet when the first case runs.
        let mut quiet = None;
        let mut flooded = None;
        for floods in [round % 2 == 1, round % 2 == 0] {
            let row = measure(bench, &environment, floods, round).await?;
            *(if floods { &mut flooded } else { &mut quiet }) = Some(row);
        }
        if let (Some(quiet), Some(mut flooded)) = (quiet, flooded) {
            for (name, percentile) in [("of_quiet_p50", 50.0), ("of_quiet_p99", 99.0)] {
                if let (Some(alone), Some(beside)) =
                    (quiet.percentile_ms(percentile), flooded.percentile_ms(percentile))
                {
                    flooded.fact(name, rounded(beside / alone.max(1e-3), 3));
                }
            }
            rows.extend([quiet, flooded]);
        }
    }
    bench.tear_down(environment).await?;
    Ok(rows)
}

async fn measure(bench: &mut Bench, environment: &Environment, floods: bool, round: usize) -> Result<Row> {
    let case = format!("{}, round {}", if floods { "flooded" } else { "quiet" }, round + 1);
    let (plan, time) = (bench.plan(1), bench.args.time(SECONDS));
    let mut trial = Trial::new(environment, plan.clone())?;
    trial.connect_workers().await?;
    let bar = Bar::new(format!("flood {case}"), time.as_secs_f64());
    let flood = match (floods, environment.flooder()) {
        (true, Some(flooder)) => Some(Flood::start(&flooder, &environment.brokers[0]).await?),
        _ => None,
    };
    // During the warm-up, the flood also uses up the burst that its limit allows.
    let warm_up = (time / 10).max(Duration::from_secs(2));
    let (began, seconds) = (Instant::now(), (warm_up + time).as_secs_f64());
    let sent = trial.produce_at(RATE, seconds).await?;
    trial.warm_up(warm_up).await?;
    let span = trial.measure((began + warm_up + time).saturating_duration_since(Instant::now()), &bar).await?;
    let flooded = match flood {
        Some(flood) => Some(flood.stop().await),
        None => None,
    };
    trial.finish().await?;
    trial.dismiss().await?;
    let mut row = Row::from_span("flood", case, span);
    row.latencies = Some(trial.take_latencies());
    row.faults = trial.faults(0);
    row.fact("rate", RATE);
    row.fact("sent", sent);
    if let Some(flooded) = flooded {
        flooded.check()?;
        row.fact("flood_stored", flooded.stored.load(Relaxed));
        row.fact("flood_limited", flooded.limited.load(Relaxed));
        row.fact("flood_refused", flooded.refused.load(Relaxed));
        row.fact("flood_connections", flooded.connected.load(Relaxed));
    }
    describe(&mut row, &plan, environment);
    Ok(row)
}
