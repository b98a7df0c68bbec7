//! Measures throughput while a snapshot is held, so that deleted rows remain in the tables and indexes.

use super::{Bench, cycle, steady::describe};
use crate::{
    error::Result,
    load::Trial,
    report::{Bar, Row, rounded},
};

/// Jobs per round.
const JOBS: u64 = 1_000_000;
const ROUNDS: u32 = 3;
/// Seconds of the measurement without a held snapshot.
const SECONDS: u64 = 20;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let alone = cycle::measure(bench, "pinned", bench.args.time(SECONDS)).await?;
    let environment = bench.environment().await?;
    let holder = environment.database()?.another_connection().await?;
    let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    holder.execute(hold, "cannot open a transaction that holds a snapshot").await?;

    let (plan, jobs) = (bench.plan(1), bench.args.jobs(JOBS));
    let compared = alone.jobs_per_s;
    let mut rows = vec![alone];
    let mut trial = Trial::new(&environment, plan.clone())?;
    trial.connect_workers().await?;
    for round in 1..=ROUNDS {
        let bar = Bar::new(format!("pinned, round {round}"), jobs as f64);
        let began = trial.begin();
        trial.produce(bench.closed(), Some(jobs)).await?;
        let span = trial.measure_until(began, jobs, &bar).await?;
        let mut row = Row::from_span("pinned", format!("round {round}"), span);
        row.fact("of_cycle_alone", rounded(row.jobs_per_s / compared, 3));
        row.latencies = Some(trial.take_latencies());
        describe(&mut row, &plan, &environment);
        rows.push(row);
    }
    trial.finish().await?;
    trial.dismiss().await?;
    if let Some(last) = rows.last_mut() {
        // Errors are counted over all rounds together, so only the last row shows them.
        last.faults = trial.faults(0);
    }
    drop(trial);
    holder.execute("ROLLBACK", "cannot end the transaction that holds a snapshot").await?;
    bench.tear_down(environment).await?;
    Ok(rows)
}
