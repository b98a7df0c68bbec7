//! What tokens and TLS cost: the same cycle without and with them, in turn, so that a machine that becomes slower
//! meanwhile is slower for all.

use super::{Bench, steady::Steady};
use crate::{
    environment::Guard,
    error::Result,
    report::{Row, rounded},
};

const ROUNDS: usize = 3;
const SECONDS: u64 = 20;

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for round in 0..ROUNDS {
        let mut guards = Guard::ALL;
        // None is always the first, while Postgres is still cold.
        guards.rotate_left(round);
        let mut measured = Vec::new();
        for guard in guards {
            measured.push((guard, measure(bench, guard, round).await?));
        }
        let plain = measured.iter().find(|(guard, _)| *guard == Guard::Nothing).map(|(_, row)| row.jobs_per_s);
        for (guard, mut row) in measured {
            if let (true, Some(plain)) = (guard != Guard::Nothing, plain) {
                row.fact("of_plain", rounded(row.jobs_per_s / plain, 3));
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

async fn measure(bench: &mut Bench, guard: Guard, round: usize) -> Result<Row> {
    let environment = bench.setting.guarded(bench.args.brokers as usize, guard).await?;
    let case = format!("{}, round {}", guard.name(), round + 1);
    let (plan, demand, time) = (bench.plan(1), bench.closed(), bench.args.time(SECONDS));
    let row = Steady { workload: "security", case, plan, demand, time }.run(&environment).await?;
    bench.leave(environment).await?;
    Ok(row)
}
