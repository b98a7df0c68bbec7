//! Measures several brokers on one database, which must not slow each other down.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::{Bench, steady::Steady};
use crate::{
    environment::Database,
    error::Result,
    report::{Row, rounded},
};

const SECONDS: u64 = 60;
/// Maximum number of brokers that are measured together.
pub(super) const MOST: usize = 3;
/// Interval at which sessions that wait for locks are counted.
const POLL: Duration = Duration::from_millis(100);

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for brokers in 1..=MOST {
        let environment = bench.setting.environment(brokers).await?;
        let case = format!("{brokers} broker{}", if brokers == 1 { "" } else { "s" });
        let (plan, demand, time) = (bench.plan(1), bench.closed(), bench.args.time(SECONDS));
        let steady = Steady { workload: "brokers", case, plan, demand, time };
        let mut waits = Waits::default();
        let connection = match &environment.database {
            Some(database) => Some(database.another_connection().await?),
            None => None,
        };
        let mut row = tokio::select! {
            row = steady.run(&environment) => row?,
            error = waits.count(connection) => return Err(error),
        };
        if waits.polls > 0 {
            row.fact("lock_waits_mean", rounded(waits.waiting as f64 / waits.polls as f64, 4));
            row.fact("lock_waits_looks", waits.polls);
        }
        rows.push(row);
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}

/// Number of polls, and sum of the sessions that each poll found waiting for a lock.
#[derive(Debug, Default)]
struct Waits {
    polls: u64,
    waiting: i64,
}

impl Waits {
    /// Polls for sessions that wait for a lock. Runs until dropped, and returns only after an error.
    async fn count(&mut self, database: Option<Database>) -> crate::Error {
        let Some(database) = database else { return std::future::pending().await };
        let mut tick = interval(POLL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match database.lock_waits().await {
                Ok(waiting) => (self.polls, self.waiting) = (self.polls + 1, self.waiting + waiting),
                Err(error) => return error,
            }
        }
    }
}
