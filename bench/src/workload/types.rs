//! Measures many task types.

use super::{Bench, steady::Steady};
use crate::{error::Result, report::Row};

const SECONDS: u64 = 20;
const TYPES: [usize; 3] = [1, 100, 10_000];

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for types in TYPES {
        let environment = bench.environment().await?;
        let mut plan = bench.plan(types);
        // A stream may have a thousand types, so there must be enough workers for all types.
        plan.workers = plan.workers.max(types.div_ceil(plan.types_per_worker));
        // All types share the capacity that one type would have.
        plan.window = (plan.window / types).max(10);
        let case = if types == 1 { "1 type".to_owned() } else { format!("{types} types") };
        let (demand, time) = (bench.closed(), bench.args.time(SECONDS));
        let mut row = Steady { workload: "types", case, plan, demand, time }.run(&environment).await?;
        row.fact("types", types);
        rows.push(row);
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}
