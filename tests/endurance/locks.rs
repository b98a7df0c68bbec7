//! What somebody holds in an open transaction makes nothing slower that does not need it.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    locks::{
        Open,
        matrix::{Times, everything, holders, jobs, rescues_soon},
    },
    support::*,
};

/// How often everything is done, with and without a lock.
const ROUNDS: usize = 20;
/// How much longer an operation may take. A job that becomes due, expires or times out is found by a sweep, so how long that
/// takes is as different without a lock.
const MARGIN: Duration = Duration::from_millis(100);

/// The longest of each operation.
async fn longest(broker: &TestBroker, name: &str) -> BTreeMap<&'static str, Duration> {
    let mut longest = BTreeMap::new();
    for round in 0..ROUNDS {
        let Times(times) = everything(broker, &format!("{name}/{round}")).await;
        for (what, time) in times {
            let most: &mut Duration = longest.entry(what).or_default();
            *most = time.max(*most);
        }
    }
    longest
}

#[tokio::test]
#[ignore = "minutes long: cargo test --test system -- --ignored endurance"]
async fn nothing_is_slower_by_more_than_100_ms_while_others_hold_locks() {
    let broker = TestBroker::start_with(rescues_soon).await;
    let jobs = jobs(&broker).await;
    let before = longest(&broker, "before").await;
    let mut slower = Vec::new();
    for (n, sql) in holders(&broker, &jobs).await.iter().enumerate() {
        let open = Open::after(&broker.database, "psql", sql).await;
        let held = longest(&broker, &format!("held/{n}")).await;
        open.roll_back().await;
        for (what, time) in held {
            if time > before[what] + MARGIN {
                slower.push(format!("{what}: {time:?} instead of {:?} while held: {sql}", before[what]));
            }
        }
    }
    assert!(slower.is_empty(), "{}", slower.join("\n"));
}
