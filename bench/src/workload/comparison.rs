//! Compares cases. Each case has its own brokers, all started at the beginning. Short slices of the cases run in turn, so that
//! other load on the machine affects all cases alike.

use std::time::Duration;

use super::steady::describe;
use crate::{
    environment::Environment,
    error::Result,
    load::{Demand, Plan, Span, Trial},
    report::{Bar, Row, rounded},
};

/// Warm-up at the start of each slice, while the queues fill. At most as long as the slice.
const WARM_UP: Duration = Duration::from_secs(1);

/// A case to measure. The first case is the baseline of the others.
pub(super) trait Case {
    /// Name of the case.
    fn name(&self) -> String;

    /// Starts the activity whose cost the case measures, such as open pages, before a slice.
    async fn begin(&mut self, _plan: &Plan, _environment: &Environment) -> Result<()> {
        Ok(())
    }

    /// Stops the activity of the case after a slice.
    async fn end(&mut self, _environment: &Environment) -> Result<()> {
        Ok(())
    }

    /// Adds figures of the case. Fails if its activity had no effect.
    fn describe(&self, _row: &mut Row) -> Result<()> {
        Ok(())
    }
}

/// Parameters of a comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) workload: &'static str,
    /// Number of rounds. Odd, so that one round is the median.
    pub(super) rounds: u32,
    pub(super) plan: Plan,
    pub(super) demand: Demand,
    /// Time per case, over all rounds.
    pub(super) time: Duration,
}

/// A case with its trial and measured slices.
struct CaseRun<'a, C> {
    case: &'a mut C,
    trial: Trial<'a>,
    slices: Vec<Span>,
}

impl Comparison {
    /// Measures the cases, each in its environment. Returns one row per case.
    pub(super) async fn measure<C: Case>(&self, cases: &mut [(C, Environment)]) -> Result<Vec<Row>> {
        let mut runs = Vec::new();
        for (case, environment) in cases {
            let mut trial = Trial::new(environment, self.plan.clone())?;
            trial.connect_workers().await?;
            runs.push(CaseRun { case, trial, slices: Vec::new() });
        }
        for round in 0..self.rounds as usize {
            for step in 0..runs.len() {
                // The order rotates, so that no case is always first.
                let at = (round + step) % runs.len();
                self.slice(&mut runs[at], round).await?;
            }
        }
        let first: Vec<f64> = runs.first().map(|run| rates(&run.slices)).unwrap_or_default();
        let mut rows = Vec::new();
        for (number, run) in runs.into_iter().enumerate() {
            let of_first = if number == 0 { None } else { Some(&*first) };
            rows.extend(self.row(run, of_first).await?);
        }
        Ok(rows)
    }

    async fn slice<C: Case>(&self, run: &mut CaseRun<'_, C>, round: usize) -> Result<()> {
        let CaseRun { case, trial, slices } = run;
        let slice = self.time / self.rounds;
        let what = format!("{} {}, round {} of {}", self.workload, case.name(), round + 1, self.rounds);
        let bar = Bar::new(what, slice.as_secs_f64());
        case.begin(&self.plan, trial.environment).await?;
        trial.produce(self.demand, None).await?;
        trial.warm_up(WARM_UP.min(slice)).await?;
        slices.push(trial.measure(slice, &bar).await?);
        trial.finish().await?;
        case.end(trial.environment).await
    }

    async fn row<C: Case>(&self, run: CaseRun<'_, C>, of_first: Option<&[f64]>) -> Result<Option<Row>> {
        let CaseRun { case, mut trial, slices } = run;
        trial.dismiss().await?;
        let rates = rates(&slices);
        let Some(span) = Span::all(slices) else { return Ok(None) };
        let mut row = Row::from_span(self.workload, case.name(), span);
        if let Some(first) = of_first {
            let ratios: Vec<f64> = rates.iter().zip(first).map(|(rate, first)| rounded(rate / first, 3)).collect();
            row.fact("of_plain", median(&ratios));
            row.fact("of_plain_each", ratios);
        }
        row.latencies = Some(trial.take_latencies());
        row.faults = trial.faults(0);
        describe(&mut row, &self.plan, trial.environment);
        case.describe(&mut row)?;
        Ok(Some(row))
    }
}

pub(super) fn rates(slices: &[Span]) -> Vec<f64> {
    slices.iter().map(Span::rate).collect()
}

/// Median of the finite values. In a very short slice no job may be settled.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
