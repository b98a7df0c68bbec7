//! Workloads that compare cycle alone with cycle in a bad situation of the database: backlog and pinned.

use std::time::{Duration, Instant};

use super::{
    Bench,
    steady::{self, Steady, measure_cycle},
};
use crate::{
    environment::{Database, Environment},
    error::Result,
    load::Trial,
    report::{Bar, Row, rounded},
};

/// Seconds of each measurement of the workload backlog.
const BACKLOG_SECONDS: u64 = 60;
const BACKLOG_JOBS: u64 = 5_000_000;
/// Jobs per `INSERT` statement. The progress bar moves after each statement.
const AT_ONCE: i64 = 250_000;
/// Maximum wait until the broker has released the jobs in transit to stopped workers.
const RELEASED: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// Inserts ready jobs with consecutive ids. $1 type id, $2 number of jobs, $3 payload size in bytes.
const FILL: &str = include_str!("../../sql/backlog.sql");

/// Measures throughput while five million jobs are ready, which must not slow down claims.
pub(super) async fn backlog(bench: &mut Bench) -> Result<Vec<Row>> {
    let time = bench.args.time(BACKLOG_SECONDS);
    let alone = measure_cycle(bench, "backlog", time).await?;
    let environment = bench.environment().await?;
    let database = environment.database()?;
    let (plan, jobs) = (bench.plan(1), bench.args.jobs(BACKLOG_JOBS));
    let name = plan.types.first().cloned().unwrap_or_default();
    let payload = plan.payload;
    let (demand, compared) = (bench.closed(), alone.jobs_per_s);
    let mut trial = Trial::new(&environment, plan.clone())?;
    fill(database, &trial, &name, jobs as i64, payload).await?;
    environment.settle_down().await;
    let case = format!("on top of {jobs}");
    let mut row = Steady { workload: "backlog", case, plan, demand, time }.run_in(&mut trial).await?;
    trial.dismiss().await?;
    all_released(database, &name).await?;
    // Workers took the oldest jobs; the newest remain in the queue.
    let waiting = "SELECT count(*) FROM howdah.ready r JOIN howdah.task_type t ON t.id = r.type_id WHERE t.name = $1";
    let waiting = database.number(waiting, &[&name]).await?;
    row.faults = trial.tally.faults(waiting as u64);
    row.fact("waiting", jobs);
    row.fact("of_cycle_alone", rounded(row.jobs_per_s / compared, 3));
    drop(trial);
    clean(&environment, database, &name).await?;
    bench.tear_down(environment).await?;
    Ok(vec![alone, row])
}

async fn fill(database: &Database, trial: &Trial<'_>, name: &str, jobs: i64, payload: usize) -> Result<()> {
    let bar = Bar::new("backlog: filling", jobs as f64);
    let type_id = database.task_type(name).await?;
    let mut filled = 0;
    while filled < jobs {
        let some = AT_ONCE.min(jobs - filled);
        // No other session uses the sequence meanwhile, so the ids are consecutive.
        let last = database.number(FILL, &[&type_id, &some, &(payload as i64)]).await?;
        trial.tally.expect(last - some + 1..=last);
        filled += some;
        bar.at(filled as f64);
    }
    database.execute("VACUUM ANALYZE howdah.ready", "VACUUM").await
}

/// Waits until no job of the type is leased. Jobs in transit to a worker that stops stay leased until the broker releases them.
async fn all_released(database: &Database, name: &str) -> Result<()> {
    let leased = "SELECT count(*) FROM howdah.leased l JOIN howdah.task_type t ON t.id = l.type_id WHERE t.name = $1";
    let deadline = Instant::now() + RELEASED;
    while database.number(leased, &[&name]).await? > 0 && Instant::now() < deadline {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Deletes the remaining jobs, which would disturb other users of this database.
async fn clean(environment: &Environment, database: &Database, name: &str) -> Result<()> {
    let _bar = Bar::spinner("backlog: cleaning up");
    if environment.is_private {
        return Ok(()); // the database is dropped
    }
    let delete = "WITH gone AS (DELETE FROM howdah.ready WHERE type_id = \
                  (SELECT id FROM howdah.task_type WHERE name = $1) RETURNING 1) SELECT count(*) FROM gone";
    database.number(delete, &[&name]).await?;
    database.execute("VACUUM howdah.ready", "VACUUM").await
}

/// Jobs per round of the workload pinned.
const PINNED_JOBS: u64 = 1_000_000;
const ROUNDS: u32 = 3;
/// Seconds of the measurement without a held snapshot.
const PINNED_SECONDS: u64 = 20;

/// Measures throughput while a snapshot is held, so that deleted rows remain in the tables and indexes.
pub(super) async fn pinned(bench: &mut Bench) -> Result<Vec<Row>> {
    let alone = measure_cycle(bench, "pinned", bench.args.time(PINNED_SECONDS)).await?;
    let environment = bench.environment().await?;
    let holder = environment.database()?.another_connection().await?;
    let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    holder.execute(hold, "cannot open a transaction that holds a snapshot").await?;

    let (plan, jobs) = (bench.plan(1), bench.args.jobs(PINNED_JOBS));
    let compared = alone.jobs_per_s;
    let mut rows = vec![alone];
    let mut trial = Trial::new(&environment, plan)?;
    trial.connect_workers().await?;
    for round in 1..=ROUNDS {
        let bar = Bar::new(format!("pinned, round {round}"), jobs as f64);
        let began = trial.begin();
        trial.produce(bench.closed(), Some(jobs)).await?;
        let span = trial.measure_until(began, jobs, &bar).await?;
        let mut row = steady::row(&trial, "pinned", format!("round {round}"), span);
        row.fact("of_cycle_alone", rounded(row.jobs_per_s / compared, 3));
        rows.push(row);
    }
    trial.finish().await?;
    trial.dismiss().await?;
    if let Some(last) = rows.last_mut() {
        // Errors are counted over all rounds together, so only the last row shows them.
        last.faults = trial.tally.faults(0);
    }
    drop(trial);
    holder.execute("ROLLBACK", "cannot end the transaction that holds a snapshot").await?;
    bench.tear_down(environment).await?;
    Ok(rows)
}
