//! What several stores bring, and what they cost: the same cycle with a broker on one store and on two, each in a Postgres of
//! its own, and with a broker whose other store is away.

use super::{
    Bench,
    turns::{Case, Turns},
};
use crate::{
    environment::{Environment, Special, StorePlace},
    error::{Error, Result},
    load::Plan,
    report::{Row, rounded},
    yardstick::{self, Way},
};

const ROUNDS: u32 = 7;
/// Seconds of each case, all rounds together.
const SECONDS: u64 = 35;

/// The stores of a broker.
struct Stores {
    name: &'static str,
    places: &'static [StorePlace],
}

/// All of them have the same two task types. With two stores that are there, each has one of the types.
const CASES: [Stores; 4] = [
    Stores { name: "1 store", places: &[StorePlace::First] },
    Stores { name: "2 stores", places: &[StorePlace::First, StorePlace::Second] },
    Stores { name: "first store, the second away", places: &[StorePlace::First, StorePlace::Away] },
    Stores { name: "second store, the first away", places: &[StorePlace::Second, StorePlace::Away] },
];

impl Case for Stores {
    fn name(&self) -> String {
        self.name.to_owned()
    }
}

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let plan = Plan { one_type_a_request: true, ..bench.plan(2) };
    let mut cases = Vec::new();
    for case in CASES {
        let special = Special::stores(case.places);
        let environment = bench.setting.special(bench.args.brokers as usize, special).await?;
        make_types(&plan, &environment).await?;
        cases.push((case, environment));
    }
    let (demand, time) = (bench.closed(), bench.args.time(SECONDS));
    let mut rows =
        Turns { workload: "stores", rounds: bench.args.rounds(ROUNDS), plan, demand, time }.measure(&mut cases).await?;
    for (_, environment) in cases {
        bench.leave(environment).await?;
    }
    if let Some(two) = rows.get_mut(1) {
        two.fact("yardsticks_of_one", rounded(yardsticks_of_one(bench).await?, 3));
    }
    Ok(rows)
}

/// Each type is at home in the store that has it: that is decided here, not by the names.
async fn make_types(plan: &Plan, environment: &Environment) -> Result<()> {
    let databases: Vec<_> = environment.databases().collect();
    for (number, name) in plan.types.iter().enumerate() {
        let Some(database) = databases.get(number % databases.len().max(1)) else {
            return Err(Error::Process("no store was started".into()));
        };
        // Its name is one of ours: it has no quotes.
        let make = format!("INSERT INTO howdah.task_type (name) VALUES ('{name}')");
        database.execute(&make, "making a task type").await?;
    }
    Ok(())
}

/// What both Postgres do together at once, as a part of what the first does alone: no broker can gain more on this machine.
async fn yardsticks_of_one(bench: &Bench) -> Result<f64> {
    let time = bench.args.yardstick_time();
    let [Some(first), Some(second)] = bench.setting.both() else {
        return Err(Error::Process("no second Postgres was started".into()));
    };
    let alone = yardstick::measure(first, Way::Cycle, 2, time).await?;
    let (one, other) = tokio::try_join!(
        yardstick::measure(first, Way::Cycle, 2, time),
        yardstick::measure(second, Way::Cycle, 2, time)
    )?;
    Ok((one + other) / alone)
}
