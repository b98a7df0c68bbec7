//! What tokens and TLS cost: the same cycle without and with them.

use super::{
    Bench,
    turns::{Case, Turns},
};
use crate::{environment::Guard, error::Result, report::Row};

const ROUNDS: u32 = 11;
/// Seconds of each case, all rounds together.
const SECONDS: u64 = 20;

impl Case for Guard {
    fn name(&self) -> String {
        Self::name(*self).to_owned()
    }
}

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut cases = Vec::new();
    for guard in Guard::ALL {
        cases.push((guard, bench.setting.guarded(bench.args.brokers as usize, guard).await?));
    }
    let (plan, demand, time) = (bench.plan(1), bench.closed(), bench.args.time(SECONDS));
    let turns = Turns { workload: "security", rounds: bench.args.rounds(ROUNDS), plan, demand, time };
    let rows = turns.measure(&mut cases).await?;
    for (_, environment) in cases {
        bench.leave(environment).await?;
    }
    Ok(rows)
}
