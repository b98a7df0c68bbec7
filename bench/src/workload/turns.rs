//! Cases that are compared: each has brokers of its own, all of which are there from the beginning, and short slices take turns,
//! so that whatever else the machine does meets all of them alike.

use std::time::Duration;

use super::steady::describe;
use crate::{
    environment::Environment,
    error::Result,
    load::{Demand, Plan, Span, Trial},
    report::{Bar, Row, rounded},
};

/// Not measured, at the beginning of each slice: the queues fill. At most as long as the slice.
const WARM_UP: Duration = Duration::from_secs(1);

/// What is measured. The first case is the one that the others are compared with.
pub(super) trait Case {
    /// Its name.
    fn name(&self) -> String;

    /// Begins what goes on beside a slice.
    async fn begin(&mut self, _plan: &Plan, _environment: &Environment) -> Result<()> {
        Ok(())
    }

    /// Ends it.
    async fn end(&mut self, _environment: &Environment) -> Result<()> {
        Ok(())
    }

    /// Adds what is known of it. Fails if it was not measured.
    fn describe(&self, _row: &mut Row) -> Result<()> {
        Ok(())
    }
}

/// How it is measured.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) workload: &'static str,
    /// Odd, so that one of them is the median.
    pub(super) rounds: u32,
    pub(super) plan: Plan,
    pub(super) demand: Demand,
    /// Of each case, all rounds together.
    pub(super) time: Duration,
}

/// One case in the course of the turns.
struct Turn<'a, C> {
    case: &'a mut C,
    trial: Trial<'a>,
    slices: Vec<Span>,
}

impl Turns {
    /// Measures the cases, each in its environment. Returns a row for each.
    pub(super) async fn measure<C: Case>(&self, cases: &mut [(C, Environment)]) -> Result<Vec<Row>> {
        let mut turns = Vec::new();
        for (case, environment) in cases {
            let mut trial = Trial::new(environment, self.plan.clone())?;
            trial.connect_workers().await?;
            turns.push(Turn { case, trial, slices: Vec::new() });
        }
        for round in 0..self.rounds as usize {
            for turn in 0..turns.len() {
                // None is always the first.
                let at = (round + turn) % turns.len();
                self.slice(&mut turns[at], round).await?;
            }
        }
        let first: Vec<f64> = turns.first().map(|turn| rates(&turn.slices)).unwrap_or_default();
        let mut rows = Vec::new();
        for (number, turn) in turns.into_iter().enumerate() {
            let of_first = if number == 0 { None } else { Some(&*first) };
            rows.extend(self.row(turn, of_first).await?);
        }
        Ok(rows)
    }

    async fn slice<C: Case>(&self, turn: &mut Turn<'_, C>, round: usize) -> Result<()> {
        let Turn { case, trial, slices } = turn;
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

    async fn row<C: Case>(&self, turn: Turn<'_, C>, of_first: Option<&[f64]>) -> Result<Option<Row>> {
        let Turn { case, mut trial, slices } = turn;
        trial.dismiss().await?;
        let rates = rates(&slices);
        let Some(span) = Span::all(slices) else { return Ok(None) };
        let mut row = Row::of(self.workload, case.name(), span);
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

/// The one in the middle of those that are known: in a very short slice nothing may be settled.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
