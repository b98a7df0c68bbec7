//! One job per call.

use super::{Bench, steady::Steady};
use crate::{error::Result, load::Demand, report::Row};

const SECONDS: u64 = 20;
const CALLERS: [usize; 3] = [1, 16, 256];

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for producers in CALLERS {
        let environment = bench.environment().await?;
        let case = format!("{producers} producer{}", if producers == 1 { "" } else { "s" });
        let (plan, demand) = (bench.plan(1), Demand::Single { producers });
        let time = bench.args.time(SECONDS);
        rows.push(Steady { workload: "single", case, plan, demand, time }.run(&environment).await?);
        bench.leave(environment).await?;
    }
    Ok(rows)
}
