//! Measures gain and cost of several stores: the same cycle with one store, with two stores in separate Postgres servers, and with
//! one of two stores unavailable.

use super::{
    Bench,
    comparison::{Case, Comparison},
};
use crate::{
    environment::{Environment, Special, StoreServer},
    error::{Error, Result},
    load::Plan,
    report::{Row, rounded},
    yardstick::{self, Variant},
};

const ROUNDS: u32 = 7;
/// Seconds per case, over all rounds.
const SECONDS: u64 = 35;

/// Stores of a case's brokers.
struct Stores {
    name: &'static str,
    servers: &'static [StoreServer],
}

/// All cases use the same two task types. With two available stores, each store has one of the types.
const CASES: [Stores; 4] = [
    Stores { name: "1 store", servers: &[StoreServer::First] },
    Stores { name: "2 stores", servers: &[StoreServer::First, StoreServer::Second] },
    Stores { name: "first store, the second away", servers: &[StoreServer::First, StoreServer::Unavailable] },
    Stores { name: "second store, the first away", servers: &[StoreServer::Second, StoreServer::Unavailable] },
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
        let special = Special::stores(case.servers);
        let environment = bench.setting.special(bench.args.brokers as usize, special).await?;
        make_types(&plan, &environment).await?;
        cases.push((case, environment));
    }
    let (demand, time) = (bench.closed(), bench.args.time(SECONDS));
    let mut rows = Comparison { workload: "stores", rounds: bench.args.rounds(ROUNDS), plan, demand, time }
        .measure(&mut cases)
        .await?;
    for (_, environment) in cases {
        bench.tear_down(environment).await?;
    }
    if let Some(two) = rows.get_mut(1) {
        two.fact("yardsticks_of_one", rounded(yardsticks_of_one(bench).await?, 3));
    }
    Ok(rows)
}

/// Creates the task types in the stores in turn. Otherwise the brokers would choose each type's store by its name.
async fn make_types(plan: &Plan, environment: &Environment) -> Result<()> {
    let databases: Vec<_> = environment.databases().collect();
    for (number, name) in plan.types.iter().enumerate() {
        let Some(database) = databases.get(number % databases.len().max(1)) else {
            return Err(Error::Process("bug: no store of the workload is available".into()));
        };
        // The benchmark generates the name, so it needs no escaping.
        let make = format!("INSERT INTO howdah.task_type (name) VALUES ('{name}')");
        database.execute(&make, "cannot create a task type").await?;
    }
    Ok(())
}

/// Rate of both Postgres servers at the same time, relative to the first alone: the upper limit for a second store on this machine.
async fn yardsticks_of_one(bench: &Bench) -> Result<f64> {
    let time = bench.args.yardstick_time();
    let [Some(first), Some(second)] = bench.setting.both() else {
        return Err(Error::Process("bug: the second Postgres was not started".into()));
    };
    let alone = yardstick::measure(first, Variant::Cycle, 2, time).await?;
    let (one, other) = tokio::try_join!(
        yardstick::measure(first, Variant::Cycle, 2, time),
        yardstick::measure(second, Variant::Cycle, 2, time)
    )?;
    Ok((one + other) / alone)
}
