//! The speed of this Postgres without Howdah, to which everything is compared.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::{
    environment::Database,
    error::{Error, Result},
    report::{Bar, Row},
};

const SQL: &str = include_str!("../sql/yardstick.sql");
const DROP: &str = "DROP SCHEMA IF EXISTS howdah_yardstick CASCADE";
/// As for a broker under load.
const BATCH: u32 = 500;
/// A plan that is made on an empty table would be kept. These settings leave one plan for each statement.
const PINNED: &str = "SET search_path = howdah_yardstick; SET plan_cache_mode = force_generic_plan; SET jit = off; \
                      SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";

/// The path of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Stored as ready, claimed, settled.
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

/// Measures the jobs per second of this many connections together.
pub(crate) async fn measure(url: &str, way: Way, connections: u32, time: Duration) -> Result<f64> {
    let _bar = Bar::spinner(format!("yardstick: {}, {connections} connection(s)", way.procedure()));
    let admin = Database::connect(url).await?;
    admin.execute(DROP, "dropping the yardstick").await?;
    admin.execute(SQL, "making the yardstick").await?;
    // Every measurement starts with equally few dirty pages.
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
            // It may take one round longer than asked for: the time it took counts.
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

/// The measurements at the start of a run. The first is the one that others are compared with.
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
