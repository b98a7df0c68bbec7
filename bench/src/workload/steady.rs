//! Workloads that run producers and workers together for a fixed time: cycle, single and brokers. Also the base of others.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::Bench;
use crate::{
    environment::{Database, Environment},
    error::Result,
    load::{Demand, Plan, Span, Trial},
    report::{Bar, Row, rounded},
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
        row.faults = trial.tally.faults(0);
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
        let mut row = row(trial, self.workload, self.case, span);
        match self.demand {
            Demand::Closed { producers } => {
                row.fact("producers", producers);
                row.fact("batch", trial.plan.batch);
                row.fact("in_flight", trial.plan.in_flight);
            }
            Demand::Single { producers } | Demand::Shared { producers } => row.fact("producers", producers),
        }
        Ok(row)
    }
}

/// Creates a row from a measurement of the trial.
pub(super) fn row(trial: &Trial<'_>, workload: &'static str, case: String, span: Span) -> Row {
    let mut row = Row::from_span(workload, case, span);
    row.latencies = Some(trial.tally.latencies.take());
    row.fact("payload", trial.plan.payload);
    row.fact("workers", trial.plan.workers);
    row.fact("window", trial.plan.window);
    row.fact("brokers", trial.environment.brokers.len());
    row
}

/// Measures producers and workers together, in a closed loop.
pub(super) async fn cycle(bench: &mut Bench) -> Result<Vec<Row>> {
    Ok(vec![measure_cycle(bench, "cycle", bench.args.time(60)).await?])
}

/// Measures the cycle workload; other workloads also run it, as their baseline.
pub(super) async fn measure_cycle(bench: &mut Bench, workload: &'static str, time: Duration) -> Result<Row> {
    let environment = bench.environment().await?;
    let case = if workload == "cycle" { String::new() } else { "cycle alone".to_owned() };
    let (plan, demand) = (bench.plan(1), bench.closed());
    let row = Steady { workload, case, plan, demand, time }.run(&environment).await?;
    bench.tear_down(environment).await?;
    Ok(row)
}

const CALLERS: [Demand; 4] = [
    Demand::Single { producers: 1 },
    Demand::Single { producers: 16 },
    Demand::Single { producers: 256 },
    Demand::Shared { producers: 256 },
];

/// Measures callers with one job per call, and callers that enqueue one job at a time on a shared stream.
pub(super) async fn single(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for demand in CALLERS {
        let environment = bench.environment().await?;
        let case = match demand {
            Demand::Single { producers: 1 } => "1 producer".to_owned(),
            Demand::Shared { producers } => format!("{producers} producers, one stream"),
            Demand::Single { producers } | Demand::Closed { producers } => format!("{producers} producers"),
        };
        let (plan, time) = (bench.plan(1), bench.args.time(20));
        rows.push(Steady { workload: "single", case, plan, demand, time }.run(&environment).await?);
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}

/// Maximum number of brokers that are measured together.
pub(super) const MOST_BROKERS: usize = 3;
/// Interval at which sessions that wait for locks are counted.
const POLL: Duration = Duration::from_millis(100);

/// Measures several brokers on one database, which must not slow each other down.
pub(super) async fn brokers(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for brokers in 1..=MOST_BROKERS {
        let environment = bench.setting.environment(brokers).await?;
        let case = format!("{brokers} broker{}", if brokers == 1 { "" } else { "s" });
        let (plan, demand, time) = (bench.plan(1), bench.closed(), bench.args.time(60));
        let steady = Steady { workload: "brokers", case, plan, demand, time };
        let mut waits = Waits::default();
        let connection = match &environment.database {
            Some(database) => Some(database.another_connection().await?),
            None => None,
        };
        let mut row = tokio::select! {
            row = steady.run(&environment) => row?,
            error = waits.count(connection) => return Err(error),
        };
        if waits.polls > 0 {
            row.fact("lock_waits_mean", rounded(waits.waiting as f64 / waits.polls as f64, 4));
            row.fact("lock_waits_looks", waits.polls);
        }
        rows.push(row);
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}

/// Number of polls, and sum of the sessions that each poll found waiting for a lock.
#[derive(Debug, Default)]
struct Waits {
    polls: u64,
    waiting: i64,
}

impl Waits {
    /// Polls for sessions that wait for a lock. Runs until dropped, and returns only after an error.
    async fn count(&mut self, database: Option<Database>) -> crate::Error {
        let Some(database) = database else { return std::future::pending().await };
        let mut tick = interval(POLL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match database.lock_waits().await {
                Ok(waiting) => (self.polls, self.waiting) = (self.polls + 1, self.waiting + waiting),
                Err(error) => return error,
            }
        }
    }
}
