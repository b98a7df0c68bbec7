//! How fast this Postgres is without us: the measure of everything else.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::{
    environment::Database,
    error::{Error, Result},
    report::{Bar, Row},
};

const SQL: &str = include_str!("../sql/yardstick.sql");
const DROP: &str = "DROP SCHEMA IF EXISTS howdah_yardstick CASCADE";
/// As of a broker under load.
const BATCH: u32 = 500;
/// A plan made on an empty table would be kept: these leave the planner one way to each statement.
const PINNED: &str = "SET search_path = howdah_yardstick; SET plan_cache_mode = force_generic_plan; SET jit = off; \
                      SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";

/// A way for a job to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Stored, claimed, settled.
    Cycle,
    /// Stored as leased, settled.
    Direct,
}

impl Way {
    fn procedure(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Direct => "direct",
        }
    }
}

/// Measures: jobs a second of so many connections together.
pub(crate) async fn measure(url: &str, way: Way, connections: u32, time: Duration) -> Result<f64> {
    let _bar = Bar::spinner(format!("yardstick: {}, {connections} connection(s)", way.procedure()));
    let admin = Database::connect(url).await?;
    admin.execute(DROP, "dropping the yardstick").await?;
    admin.execute(SQL, "making the yardstick").await?;
    // Every measurement begins with as little to write back as the others.
    let _ = admin.execute("CHECKPOINT", "CHECKPOINT").await;
    let measured = run(&admin, way, connections, time).await;
    admin.execute(DROP, "dropping the yardstick").await?;
    measured
}

async fn run(admin: &Database, way: Way, connections: u32, time: Duration) -> Result<f64> {
    let mut running = JoinSet::new();
    let seconds = time.as_secs_f64();
    for number in 1..=connections {
        let connection = admin.again().await?;
        connection.execute(PINNED, "setting up the yardstick").await?;
        let call = format!("CALL {}({seconds}, {BATCH}, {number}, 0)", way.procedure());
        running.spawn(async move {
            let begin = Instant::now();
            let jobs = connection.text(&call, "the yardstick").await?;
            // A round longer than asked for, at most: what counts is how long it took.
            Ok::<_, Error>((jobs, begin.elapsed()))
        });
    }
    let mut rate = 0.0;
    while let Some(done) = running.join_next().await {
        let (jobs, took) = done.map_err(|error| Error::Process(format!("the yardstick: {error}")))??;
        let jobs: f64 = jobs.parse().map_err(|_| Error::Process(format!("the yardstick counted {jobs:?}")))?;
        rate += jobs / took.as_secs_f64();
    }
    Ok(rate)
}

/// The shapes that a run begins with. The first is the one that others are compared with.
pub(crate) async fn rows(url: &str, time: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (way, connections) in [(Way::Cycle, 2), (Way::Direct, 2), (Way::Cycle, 1)] {
        let rate = measure(url, way, connections, time).await?;
        let s = if connections == 1 { "" } else { "s" };
        let mut row = Row::new("yardstick", format!("{}, {connections} connection{s}", way.procedure()), rate);
        row.fact("batch", BATCH);
        rows.push(row);
    }
    let compared = rows.first().map(|row| row.jobs_per_s);
    for row in &mut rows {
        row.yardstick = compared.map(|rate| [rate, rate]);
    }
    let database = Database::connect(url).await?;
    for name in ["fsync", "synchronous_commit"] {
        let value = database.text(&format!("SHOW {name}"), "SHOW").await?;
        rows.iter_mut().for_each(|row| row.fact(name, value.clone()));
    }
    Ok(rows)
}
