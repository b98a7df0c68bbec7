//! Tests that locks held by an open transaction delay only the operations that need the locked rows or tables.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    locks::{
        Open,
        matrix::{Times, everything, holders, jobs, rescues_soon},
    },
    support::*,
};

/// Number of runs of all operations, each with and without the locks.
const ROUNDS: usize = 20;
/// Permitted difference between the longest time of an operation with and without the lock. Sweeps find jobs that become due,
/// expire or time out, so the times of these operations vary by this much even without a lock.
const MARGIN: Duration = Duration::from_millis(100);

/// Returns the longest time of each operation over all rounds.
async fn longest(broker: &TestBroker, name: &str) -> BTreeMap<&'static str, Duration> {
    let mut longest = BTreeMap::new();
    for round in 0..ROUNDS {
        let Times(times) = everything(broker, &format!("{name}/{round}")).await;
        for (operation, time) in times {
            let most: &mut Duration = longest.entry(operation).or_default();
            *most = time.max(*most);
        }
    }
    longest
}

#[tokio::test]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn no_operation_is_slower_by_over_100_ms_while_other_sessions_hold_locks() {
    let broker = TestBroker::start_with(rescues_soon).await;
    // Each run of the operations creates new task types.
    broker.sql("UPDATE howdah.settings SET task_types = 100000, version = version + 1").await;
    let jobs = jobs(&broker).await;
    let before = longest(&broker, "before").await;
    let mut slower = Vec::new();
    for (n, sql) in holders(&broker, &jobs).await.iter().enumerate() {
        let open = Open::after(&broker.database, "psql", sql).await;
        let held = longest(&broker, &format!("held/{n}")).await;
        open.roll_back().await;
        for (operation, time) in held {
            if time > before[operation] + MARGIN {
                slower.push(format!("{operation}: {time:?} instead of {:?} while held: {sql}", before[operation]));
            }
        }
    }
    assert!(slower.is_empty(), "{}", slower.join("\n"));
}
