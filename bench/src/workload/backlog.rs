//! Five million jobs wait already: a deep queue must not be slow.

use std::time::{Duration, Instant};

use super::{Bench, cycle, steady::Steady};
use crate::{
    environment::{Database, Environment},
    error::Result,
    load::Trial,
    report::{Bar, Row, rounded},
};

const SECONDS: u64 = 60;
const JOBS: u64 = 5_000_000;
/// Jobs per statement: the bar moves after each.
const AT_ONCE: i64 = 250_000;
/// How long to wait for jobs to be released.
const RELEASED: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// Ready jobs with all columns, in the order of their ids. $1 type, $2 jobs, $3 bytes of payload.
const FILL: &str = include_str!("../../sql/backlog.sql");

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let time = bench.args.time(SECONDS);
    let alone = cycle::measure(bench, "backlog", time).await?;
    let environment = bench.environment().await?;
    let database = environment.database()?;
    let (plan, jobs) = (bench.plan(1), bench.args.jobs(JOBS));
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
    // Workers took the oldest jobs; newer ones wait at the end of the queue.
    let waiting = "SELECT count(*) FROM howdah.ready r JOIN howdah.task_type t ON t.id = r.type_id WHERE t.name = $1";
    let waiting = database.number(waiting, &[&name]).await?;
    row.faults = trial.faults(waiting as u64);
    row.fact("waiting", jobs);
    row.fact("of_cycle_alone", rounded(row.jobs_per_s / compared, 3));
    drop(trial);
    clean(&environment, database, &name).await?;
    bench.leave(environment).await?;
    Ok(vec![alone, row])
}

async fn fill(database: &Database, trial: &Trial<'_>, name: &str, jobs: i64, payload: usize) -> Result<()> {
    let bar = Bar::new("backlog: filling", jobs as f64);
    let make = "INSERT INTO howdah.task_type (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name \
                RETURNING id::bigint";
    let type_id = database.number(make, &[&name]).await?;
    let mut filled = 0;
    while filled < jobs {
        let some = AT_ONCE.min(jobs - filled);
        // The sequence has no other user meanwhile, so the ids are consecutive.
        let last = database.number(FILL, &[&type_id, &some, &(payload as i64)]).await?;
        trial.expect(last - some + 1..=last);
        filled += some;
        bar.at(filled as f64);
    }
    database.execute("VACUUM ANALYZE howdah.ready", "VACUUM").await
}

/// Jobs on their way to a worker that stopped are released a moment later.
async fn all_released(database: &Database, name: &str) -> Result<()> {
    let leased = "SELECT count(*) FROM howdah.leased l JOIN howdah.task_type t ON t.id = l.type_id WHERE t.name = $1";
    let deadline = Instant::now() + RELEASED;
    while database.number(leased, &[&name]).await? > 0 && Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Jobs that are left would disturb other users of this database.
async fn clean(environment: &Environment, database: &Database, name: &str) -> Result<()> {
    let _bar = Bar::spinner("backlog: cleaning up");
    if environment.is_private() {
        return Ok(()); // the database is dropped
    }
    let delete = "WITH gone AS (DELETE FROM howdah.ready WHERE type_id = \
                  (SELECT id FROM howdah.task_type WHERE name = $1) RETURNING 1) SELECT count(*) FROM gone";
    database.number(delete, &[&name]).await?;
    database.execute("VACUUM howdah.ready", "VACUUM").await
}
