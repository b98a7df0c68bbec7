//! What tokens and TLS cost: the same cycle without and with them. All brokers are there from the beginning, and short
//! slices take turns, so that whatever else the machine does meets all of them alike.

use std::time::Duration;

use super::{Bench, steady::describe};
use crate::{
    environment::{Environment, Guard},
    error::Result,
    load::{Demand, Plan, Span, Trial},
    report::{Bar, Row, rounded},
};

/// Odd, so that one of them is the median.
const ROUNDS: u32 = 11;
/// Seconds of each case, all rounds together.
const SECONDS: u64 = 20;
/// Not measured, at the beginning of each slice: the queues fill.
const WARM_UP: Duration = Duration::from_secs(1);

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut environments = Vec::new();
    for guard in Guard::ALL {
        environments.push(bench.setting.guarded(bench.args.brokers as usize, guard).await?);
    }
    let (plan, demand, slice) = (bench.plan(1), bench.closed(), bench.args.time(SECONDS) / ROUNDS);
    let rows = measure(&environments, &plan, demand, slice).await?;
    for environment in environments {
        bench.leave(environment).await?;
    }
    Ok(rows)
}

async fn measure(environments: &[Environment], plan: &Plan, demand: Demand, slice: Duration) -> Result<Vec<Row>> {
    let mut trials = Vec::new();
    for environment in environments {
        let mut trial = Trial::new(environment, plan.clone())?;
        trial.connect_workers().await?;
        trials.push((trial, Vec::new()));
    }
    for round in 0..ROUNDS as usize {
        for turn in 0..trials.len() {
            // None is always the first.
            let at = (round + turn) % trials.len();
            let (trial, slices) = &mut trials[at];
            let what = format!("security {}, round {} of {ROUNDS}", Guard::ALL[at].name(), round + 1);
            let bar = Bar::new(what, slice.as_secs_f64());
            trial.produce(demand, None).await?;
            trial.warm_up(WARM_UP).await?;
            slices.push(trial.measure(slice, &bar).await?);
            trial.finish().await?;
        }
    }
    let plain: Vec<f64> = trials.first().map(|(_, slices)| slices.iter().map(Span::rate).collect()).unwrap_or_default();
    let mut rows = Vec::new();
    for ((mut trial, slices), guard) in trials.into_iter().zip(Guard::ALL) {
        trial.dismiss().await?;
        let ratios = slices.iter().zip(&plain).map(|(slice, plain)| slice.rate() / plain);
        let ratios: Vec<f64> = ratios.map(|ratio| rounded(ratio, 3)).collect();
        let Some(span) = Span::all(slices) else { continue };
        let mut row = Row::of("security", guard.name(), span);
        if guard != Guard::Nothing {
            row.fact("of_plain", median(&ratios));
            row.fact("of_plain_each", ratios);
        }
        row.latencies = Some(trial.take_latencies());
        row.faults = trial.faults(0);
        describe(&mut row, plan, trial.environment);
        rows.push(row);
    }
    Ok(rows)
}

/// The one in the middle.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
