//! Measures the speed of this Postgres without Howdah, as the baseline of all measurements.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::{
    environment::Database,
    error::{Error, Result},
    report::{Bar, Row},
};

const SQL: &str = include_str!("../sql/yardstick.sql");
const DROP: &str = "DROP SCHEMA IF EXISTS howdah_yardstick CASCADE";
/// Jobs per statement, as in a typical batch of a broker under load.
const BATCH: u32 = 500;
/// Settings that leave only one possible plan per statement. Otherwise a plan made for an empty table would be kept.
const PINNED: &str = "SET search_path = howdah_yardstick; SET plan_cache_mode = force_generic_plan; SET jit = off; \
                      SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";

/// Table moves that a yardstick job makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// A job is stored as ready, claimed, and settled.
    Cycle,
    /// A job is stored as leased, and settled.
    Direct,
}

impl Variant {
    fn procedure(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Direct => "direct",
        }
    }
}

/// Measures the total rate of this many connections, in jobs per second.
pub(crate) async fn measure(url: &str, variant: Variant, connections: u32, time: Duration) -> Result<f64> {
    let _bar = Bar::spinner(format!("yardstick: {}, {connections} connection(s)", variant.procedure()));
    let admin = Database::connect(url).await?;
    admin.execute(DROP, "cannot drop the schema of the yardstick").await?;
    admin.execute(SQL, "cannot create the schema of the yardstick").await?;
    // Checkpoint first, so that each measurement starts with few dirty pages.
    let _ = admin.execute("CHECKPOINT", "CHECKPOINT").await;
    let measured = run(&admin, variant, connections, time).await;
    admin.execute(DROP, "cannot drop the schema of the yardstick").await?;
    measured
}

async fn run(admin: &Database, variant: Variant, connections: u32, time: Duration) -> Result<f64> {
    let mut running = JoinSet::new();
    let seconds = time.as_secs_f64();
    for number in 1..=connections {
        let connection = admin.another_connection().await?;
        connection.execute(PINNED, "cannot set up a connection of the yardstick").await?;
        let call = format!("CALL {}({seconds}, {BATCH}, {number}, 0)", variant.procedure());
        running.spawn(async move {
            let begin = Instant::now();
            let jobs = connection.text(&call, "the yardstick").await?;
            // A connection finishes its last round after the requested time, so measure the actual time.
            Ok::<_, Error>((jobs, begin.elapsed()))
        });
    }
    let mut rate = 0.0;
    while let Some(done) = running.join_next().await {
        let (jobs, took) = done.map_err(|error| Error::Process(format!("the yardstick: {error}")))??;
        let jobs: f64 = jobs
            .parse()
            .map_err(|_| Error::Process(format!("bug: the yardstick returned {jobs:?} instead of a number of jobs")))?;
        rate += jobs / took.as_secs_f64();
    }
    Ok(rate)
}

/// Measures the yardstick at the start of a run. The first returned row is the baseline.
pub(crate) async fn rows(url: &str, time: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (variant, connections) in [(Variant::Cycle, 2), (Variant::Direct, 2), (Variant::Cycle, 1)] {
        let rate = measure(url, variant, connections, time).await?;
        let s = if connections == 1 { "" } else { "s" };
        let mut row = Row::new("yardstick", format!("{}, {connections} connection{s}", variant.procedure()), rate);
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
