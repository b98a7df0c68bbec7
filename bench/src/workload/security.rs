//! Measures the cost of tokens and TLS: the same cycle without and with them.

use super::{
    Bench,
    comparison::{Case, Comparison},
};
use crate::{environment::Guard, error::Result, report::Row};

const ROUNDS: u32 = 11;
/// Seconds per case, over all rounds.
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
    let comparison = Comparison { workload: "security", rounds: bench.args.rounds(ROUNDS), plan, demand, time };
    let rows = comparison.measure(&mut cases).await?;
    for (_, environment) in cases {
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}
