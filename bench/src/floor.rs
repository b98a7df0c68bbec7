//! Measures the floor: the lower bound for the latency of a durable job on this machine. It is the time to commit one row at
//! the same rate as the jobs, without broker and gRPC.

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

const TABLE: &str = "DROP SCHEMA IF EXISTS howdah_floor CASCADE; CREATE SCHEMA howdah_floor; \
                     CREATE TABLE howdah_floor.row (id bigint PRIMARY KEY, payload bytea NOT NULL)";
const PREPARE: &str = "PREPARE floor (bigint) AS INSERT INTO howdah_floor.row VALUES ($1, decode(repeat('5a', 64), 'hex')); \
                       PREPARE ended (bigint) AS DELETE FROM howdah_floor.row WHERE id = $1";
const DROP: &str = "DROP SCHEMA IF EXISTS howdah_floor CASCADE";
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
    database.execute(TABLE, "cannot create the table for measuring commits").await?;
    let connections = ((per_second / PAIRS).ceil() as usize).clamp(1, CONNECTIONS);
    let mut opened = Vec::new();
    for _ in 0..connections {
        let connection = database.another_connection().await?;
        connection.execute(PREPARE, "cannot prepare the statements for measuring commits").await?;
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
    let (mut all, mut kept) = (new()?, Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (connection, taken) =
            ended.map_err(|error| Error::Process(format!("bug: the measurement of commits panicked: {error}")))??;
        all.add(&taken).map_err(|error| Error::Usage(error.to_string()))?;
        kept.push(connection);
    }
    let after = Mark::take(environment).await;
    drop(kept);
    database.execute(DROP, "cannot drop the table for measuring commits").await?;
    row.fact("floor_per_s", rounded(all.len() as f64 / time.as_secs_f64().max(1e-9), 1));
    for (name, percentile) in [("floor_p50_ms", 50.0), ("floor_p99_ms", 99.0), ("floor_p999_ms", 99.9)] {
        row.fact(name, rounded(all.value_at_percentile(percentile) as f64 / 1e3, 3));
    }
    if let Some((after, before)) = after.cpu[2].zip(before.cpu[2]) {
        row.fact("floor_postgres_cpu_us", rounded((after - before) * 1e6 / all.len().max(1) as f64, 2));
    }
    Ok(())
}

/// Measures the first commit of each pair, from the time the statement is sent. Timer ticks are too coarse to be the start.
async fn pair(connection: &Database, number: u64, per_second: f64, time: Duration) -> Result<Micros> {
    let (mut taken, mut tick) = (new()?, interval(Duration::from_secs_f64(1.0 / per_second)));
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

fn new() -> Result<Micros> {
    Micros::new_with_bounds(1, LONGEST_US, 3).map_err(|error| Error::Usage(error.to_string()))
}
