//! The least time that a durable job can take here: a commit of one row, at the same rate, on an idle connection,
//! without broker and gRPC.

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
/// A minute.
const LONGEST_US: u64 = 60_000_000;

/// How long commits take at this rate, from when each is sent, because this clock is too coarse for more.
async fn commits(database: &Database, per_second: f64, time: Duration) -> Result<Micros> {
    let mut taken = new()?;
    let mut tick = interval(Duration::from_secs_f64(1.0 / per_second));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let begun = Instant::now();
    let mut id = 0_u64;
    while begun.elapsed() < time {
        tick.tick().await;
        id += 1;
        let sent = Instant::now();
        database.execute(&format!("EXECUTE floor ({id})"), "a commit of the floor").await?;
        taken.saturating_record(sent.elapsed().as_micros() as u64);
    }
    Ok(taken)
}

/// Adds the time of a commit at that rate to a row; nothing without a database.
pub(crate) async fn note(row: &mut Row, database: Option<&Database>, per_second: f64, time: Duration) -> Result<()> {
    let Some(database) = database else { return Ok(()) };
    let _bar = Bar::spinner(format!("floor: {per_second} commits/s"));
    let own = database.again().await?;
    own.execute(TABLE, "making the floor").await?;
    own.execute(PREPARE, "preparing the floor").await?;
    let taken = commits(&own, per_second, time).await;
    own.execute(DROP, "dropping the floor").await?;
    let taken = taken?;
    for (name, percentile) in [("commit_p50_ms", 50.0), ("commit_p99_ms", 99.0)] {
        row.fact(name, rounded(taken.value_at_percentile(percentile) as f64 / 1e3, 3));
    }
    Ok(())
}

/// Connections for pairs at high rates: one does about 2,000 a second.
const CONNECTIONS: usize = 16;
/// Pairs a second of a connection.
const PAIRS: f64 = 500.0;

/// Adds what two commits a job take at that rate: one inserts a row, the other deletes it, each waited for.
pub(crate) async fn pairs(row: &mut Row, environment: &Environment, per_second: f64, time: Duration) -> Result<()> {
    let Some(database) = &environment.database else { return Ok(()) };
    let _bar = Bar::spinner(format!("floor: {per_second} times two commits a second"));
    database.execute(TABLE, "making the floor").await?;
    let connections = ((per_second / PAIRS).ceil() as usize).clamp(1, CONNECTIONS);
    let mut opened = Vec::new();
    for _ in 0..connections {
        let own = database.again().await?;
        own.execute(PREPARE, "preparing the floor").await?;
        opened.push(own);
    }
    let before = Mark::take(environment).await;
    let mut tasks = JoinSet::new();
    for (number, own) in opened.into_iter().enumerate() {
        // The connection stays until the time that its session used was read.
        tasks.spawn(
            async move { pair(&own, number as u64, per_second / connections as f64, time).await.map(|t| (own, t)) },
        );
    }
    let (mut all, mut kept) = (new()?, Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (own, taken) = ended.map_err(|error| Error::Process(format!("the floor failed: {error}")))??;
        all.add(&taken).map_err(|error| Error::Usage(error.to_string()))?;
        kept.push(own);
    }
    let after = Mark::take(environment).await;
    drop(kept);
    database.execute(DROP, "dropping the floor").await?;
    row.fact("floor_per_s", rounded(all.len() as f64 / time.as_secs_f64().max(1e-9), 1));
    for (name, percentile) in [("floor_p50_ms", 50.0), ("floor_p99_ms", 99.0), ("floor_p999_ms", 99.9)] {
        row.fact(name, rounded(all.value_at_percentile(percentile) as f64 / 1e3, 3));
    }
    if let Some((after, before)) = after.cpu[2].zip(before.cpu[2]) {
        row.fact("floor_postgres_cpu_us", rounded((after - before) * 1e6 / all.len().max(1) as f64, 2));
    }
    Ok(())
}

/// How long the first commit of each pair takes, from when it is sent.
async fn pair(own: &Database, number: u64, per_second: f64, time: Duration) -> Result<Micros> {
    let (mut taken, mut tick) = (new()?, interval(Duration::from_secs_f64(1.0 / per_second)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (begun, mut id) = (Instant::now(), number << 40);
    while begun.elapsed() < time {
        tick.tick().await;
        id += 1;
        let sent = Instant::now();
        own.execute(&format!("EXECUTE floor ({id})"), "a commit of the floor").await?;
        taken.saturating_record(sent.elapsed().as_micros() as u64);
        own.execute(&format!("EXECUTE ended ({id})"), "a commit of the floor").await?;
    }
    Ok(taken)
}

fn new() -> Result<Micros> {
    Micros::new_with_bounds(1, LONGEST_US, 3).map_err(|error| Error::Usage(error.to_string()))
}
