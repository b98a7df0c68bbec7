//! Several brokers on one database must not slow each other down.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::{Bench, steady::Steady};
use crate::{
    environment::Database,
    error::Result,
    report::{Row, rounded},
};

const SECONDS: u64 = 60;
/// The number of brokers it needs.
pub(super) const MOST: usize = 3;
/// How often waiting sessions are counted.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for brokers in 1..=MOST {
        let environment = bench.setting.environment(brokers).await?;
        let case = format!("{brokers} broker{}", if brokers == 1 { "" } else { "s" });
        let (plan, demand, time) = (bench.plan(1), bench.closed(), bench.args.time(SECONDS));
        let steady = Steady { workload: "brokers", case, plan, demand, time };
        let mut waits = Waits::default();
        let looker = match &environment.database {
            Some(database) => Some(database.again().await?),
            None => None,
        };
        let mut row = tokio::select! {
            row = steady.run(&environment) => row?,
            error = waits.look(looker) => return Err(error),
        };
        if waits.looks > 0 {
            row.fact("lock_waits_mean", rounded(waits.seen as f64 / waits.looks as f64, 4));
            row.fact("lock_waits_looks", waits.looks);
        }
        rows.push(row);
        bench.leave(environment).await?;
    }
    Ok(rows)
}

/// Sessions seen waiting for a lock.
#[derive(Debug, Default)]
struct Waits {
    looks: u64,
    seen: i64,
}

impl Waits {
    /// Counts until it is dropped; returns only after an error.
    async fn look(&mut self, database: Option<Database>) -> crate::Error {
        let Some(database) = database else { return std::future::pending().await };
        let mut tick = interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match database.lock_waits().await {
                Ok(waiting) => (self.looks, self.seen) = (self.looks + 1, self.seen + waiting),
                Err(error) => return error,
            }
        }
    }
}
