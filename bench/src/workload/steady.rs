//! Runs producers and workers together for a fixed time: the base of most workloads.

use std::time::Duration;

use crate::{
    environment::Environment,
    error::Result,
    load::{Demand, Plan, Trial},
    report::{Bar, Row},
};

/// Warm-up before the measurement, while connections open, statements are planned and caches fill.
const WARM_UP: Duration = Duration::from_secs(2);

/// Parameters of one case of a workload.
#[derive(Debug)]
pub(super) struct Steady {
    pub(super) workload: &'static str,
    pub(super) case: String,
    pub(super) plan: Plan,
    pub(super) demand: Demand,
    pub(super) time: Duration,
}

impl Steady {
    /// Runs the case in an environment, from the first worker to the final count.
    pub(super) async fn run(self, environment: &Environment) -> Result<Row> {
        let mut trial = Trial::new(environment, self.plan.clone())?;
        let mut row = self.run_in(&mut trial).await?;
        trial.dismiss().await?;
        row.faults = trial.faults(0);
        Ok(row)
    }

    /// Runs the case in an existing trial, which keeps its workers and counts afterwards.
    pub(super) async fn run_in(self, trial: &mut Trial<'_>) -> Result<Row> {
        let bar = Bar::new(format!("{} {}", self.workload, self.case), self.time.as_secs_f64());
        trial.connect_workers().await?;
        trial.produce(self.demand, None).await?;
        trial.warm_up(WARM_UP.min(self.time)).await?;
        let span = trial.measure(self.time, &bar).await?;
        trial.finish().await?;
        let mut row = Row::from_span(self.workload, self.case, span);
        row.latencies = Some(trial.take_latencies());
        describe(&mut row, &self.plan, trial.environment);
        match self.demand {
            Demand::Closed { producers } => {
                row.fact("producers", producers);
                row.fact("batch", self.plan.batch);
                row.fact("in_flight", self.plan.in_flight);
            }
            Demand::Single { producers } | Demand::Shared { producers } => row.fact("producers", producers),
        }
        Ok(row)
    }
}

/// Adds figures that describe the plan and the environment to a row.
pub(super) fn describe(row: &mut Row, plan: &Plan, environment: &Environment) {
    row.fact("payload", plan.payload);
    row.fact("workers", plan.workers);
    row.fact("window", plan.window);
    row.fact("brokers", environment.brokers.len());
}
