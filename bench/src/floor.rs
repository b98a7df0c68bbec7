//! The least time that a durable job can take here: a commit of one row, at the same rate, on an idle connection,
//! without broker and gRPC.

use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::{
    environment::Database,
    error::{Error, Result},
    load::Micros,
    report::{Bar, Row, rounded},
};

const TABLE: &str = "DROP SCHEMA IF EXISTS howdah_floor CASCADE; CREATE SCHEMA howdah_floor; \
                     CREATE TABLE howdah_floor.row (id bigint PRIMARY KEY, payload bytea NOT NULL); \
                     PREPARE floor (bigint) AS INSERT INTO howdah_floor.row VALUES ($1, decode(repeat('5a', 64), 'hex'))";
const DROP: &str = "DROP SCHEMA IF EXISTS howdah_floor CASCADE";
/// A minute.
const LONGEST_US: u64 = 60_000_000;

/// How long commits take at this rate, from when each is sent, because this clock is too coarse for more.
async fn commits(database: &Database, per_second: f64, time: Duration) -> Result<Micros> {
    let mut taken = Micros::new_with_bounds(1, LONGEST_US, 3).map_err(|error| Error::Usage(error.to_string()))?;
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
    let taken = commits(&own, per_second, time).await;
    own.execute(DROP, "dropping the floor").await?;
    let taken = taken?;
    for (name, percentile) in [("commit_p50_ms", 50.0), ("commit_p99_ms", 99.0)] {
        row.fact(name, rounded(taken.value_at_percentile(percentile) as f64 / 1e3, 3));
    }
    Ok(())
}
