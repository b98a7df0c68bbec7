//! Measures the speed of this Postgres without Howdah: the yardstick of all measurements, and the floor of latencies.

use std::time::{Duration, Instant};

use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::{
    environment::{Database, Environment, Mark},
    error::{Error, Result},
    load::Micros,
    report::{Bar, Row, rounded},
};

const SQL: &str = include_str!("../sql/yardstick.sql");
const DROP: &str = "DROP SCHEMA IF EXISTS howdah_yardstick CASCADE";
/// Jobs per statement, as in a typical batch of a broker under load.
const BATCH: u32 = 500;
/// Settings that leave only one possible plan per statement. Otherwise Postgres would keep plans for empty tables.
const PINNED: &str = "SET search_path = howdah_yardstick; SET plan_cache_mode = force_generic_plan; SET jit = off; \
                      SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off";

/// Procedure of a yardstick job that is stored as ready, claimed, and settled.
pub(crate) const CYCLE: &str = "cycle";
/// Procedure of a yardstick job that is stored as leased, and settled.
const DIRECT: &str = "direct";

/// Measures the total rate of this many connections, in jobs per second.
pub(crate) async fn measure(url: &str, procedure: &str, connections: u32, time: Duration) -> Result<f64> {
    let _bar = Bar::spinner(format!("yardstick: {procedure}, {connections} connection(s)"));
    let admin = Database::connect(url).await?;
    admin.execute(DROP, "cannot drop the schema of the yardstick").await?;
    admin.execute(SQL, "cannot create the schema of the yardstick").await?;
    // Checkpoint first, so that each measurement starts with few dirty pages.
    let _ = admin.execute("CHECKPOINT", "CHECKPOINT").await;
    let measured = run(&admin, procedure, connections, time).await;
    admin.execute(DROP, "cannot drop the schema of the yardstick").await?;
    measured
}

async fn run(admin: &Database, procedure: &str, connections: u32, time: Duration) -> Result<f64> {
    let mut running = JoinSet::new();
    let seconds = time.as_secs_f64();
    for number in 1..=connections {
        let connection = admin.another_connection().await?;
        connection.execute(PINNED, "cannot set up a connection of the yardstick").await?;
        let call = format!("CALL {procedure}({seconds}, {BATCH}, {number}, 0)");
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
    for (procedure, connections) in [(CYCLE, 2), (DIRECT, 2), (CYCLE, 1)] {
        let rate = measure(url, procedure, connections, time).await?;
        let s = if connections == 1 { "" } else { "s" };
        let mut row = Row::new("yardstick", format!("{procedure}, {connections} connection{s}"), rate);
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

/// The floor is the lower bound for the latency of a durable job on this machine: the time to commit one row at the same rate as
/// the jobs, without broker and gRPC.
const FLOOR_TABLE: &str = "DROP SCHEMA IF EXISTS howdah_floor CASCADE; CREATE SCHEMA howdah_floor; \
                     CREATE TABLE howdah_floor.row (id bigint PRIMARY KEY, payload bytea NOT NULL)";
const FLOOR_PREPARE: &str = "PREPARE floor (bigint) AS INSERT INTO howdah_floor.row VALUES ($1, decode(repeat('5a', 64), 'hex')); \
                       PREPARE ended (bigint) AS DELETE FROM howdah_floor.row WHERE id = $1";
const FLOOR_DROP: &str = "DROP SCHEMA IF EXISTS howdah_floor CASCADE";
/// Maximum recorded commit time: one minute.
const LONGEST_US: u64 = 60_000_000;

/// Maximum number of connections that commit pairs (an insert, then a delete). One connection can commit about 2,000
/// pairs per second.
const CONNECTIONS: usize = 16;
/// Rate of pairs for which one connection is opened, up to `CONNECTIONS` connections.
const PAIRS: f64 = 500.0;

/// Measures pairs of commits at this rate and adds their times to a row. The first commit of a pair inserts a database
/// row, the second deletes it.
pub(crate) async fn add_pair_times(
    row: &mut Row,
    environment: &Environment,
    per_second: f64,
    time: Duration,
) -> Result<()> {
    let Some(database) = &environment.database else { return Ok(()) };
    let _bar = Bar::spinner(format!("Postgres alone: {per_second} times two commits a second"));
    database.execute(FLOOR_TABLE, "cannot create the table for measuring commits").await?;
    let connections = ((per_second / PAIRS).ceil() as usize).clamp(1, CONNECTIONS);
    let mut opened = Vec::new();
    for _ in 0..connections {
        let connection = database.another_connection().await?;
        connection.execute(FLOOR_PREPARE, "cannot prepare the statements for measuring commits").await?;
        opened.push(connection);
    }
    let before = Mark::take(environment).await;
    let mut tasks = JoinSet::new();
    for (number, connection) in opened.into_iter().enumerate() {
        // Keep the connection open until the processor time of its session has been read.
        tasks.spawn(async move {
            pair(&connection, number as u64, per_second / connections as f64, time).await.map(|t| (connection, t))
        });
    }
    let (mut all, mut kept) = (micros()?, Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (connection, taken) =
            ended.map_err(|error| Error::Process(format!("bug: the measurement of commits panicked: {error}")))??;
        all.add(&taken).map_err(|error| Error::Usage(error.to_string()))?;
        kept.push(connection);
    }
    let used = Mark::take(environment).await.since(&before);
    drop(kept);
    database.execute(FLOOR_DROP, "cannot drop the table for measuring commits").await?;
    row.fact("floor_per_s", rounded(all.len() as f64 / time.as_secs_f64().max(1e-9), 1));
    for (name, percentile) in [("floor_p50_ms", 50.0), ("floor_p99_ms", 99.0), ("floor_p999_ms", 99.9)] {
        row.fact(name, rounded(all.value_at_percentile(percentile) as f64 / 1e3, 3));
    }
    row.known("floor_postgres_cpu_us", used.cpu[2].map(|seconds| rounded(seconds * 1e6 / all.len().max(1) as f64, 2)));
    Ok(())
}

/// Measures the first commit of each pair, from the time the statement is sent, because timer ticks are too coarse to be the
/// start.
async fn pair(connection: &Database, number: u64, per_second: f64, time: Duration) -> Result<Micros> {
    let (mut taken, mut tick) = (micros()?, interval(Duration::from_secs_f64(1.0 / per_second)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (begun, mut id) = (Instant::now(), number << 40);
    while begun.elapsed() < time {
        tick.tick().await;
        id += 1;
        let sent = Instant::now();
        connection.execute(&format!("EXECUTE floor ({id})"), "cannot commit a row for measuring commits").await?;
        taken.saturating_record(sent.elapsed().as_micros() as u64);
        connection.execute(&format!("EXECUTE ended ({id})"), "cannot commit a row for measuring commits").await?;
    }
    Ok(taken)
}

fn micros() -> Result<Micros> {
    Micros::new_with_bounds(1, LONGEST_US, 3).map_err(|error| Error::Usage(error.to_string()))
}
