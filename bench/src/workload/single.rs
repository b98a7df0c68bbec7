//! Measures callers with one job per call, and callers that enqueue one job at a time on a shared stream.

use super::{Bench, steady::Steady};
use crate::{error::Result, load::Demand, report::Row};

const SECONDS: u64 = 20;
const CALLERS: [Demand; 4] = [
    Demand::Single { producers: 1 },
    Demand::Single { producers: 16 },
    Demand::Single { producers: 256 },
    Demand::Shared { producers: 256 },
];

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for demand in CALLERS {
        let environment = bench.environment().await?;
        let case = match demand {
            Demand::Single { producers: 1 } => "1 producer".to_owned(),
            Demand::Shared { producers } => format!("{producers} producers, one stream"),
            Demand::Single { producers } | Demand::Closed { producers } => format!("{producers} producers"),
        };
        let (plan, time) = (bench.plan(1), bench.args.time(SECONDS));
        rows.push(Steady { workload: "single", case, plan, demand, time }.run(&environment).await?);
        bench.tear_down(environment).await?;
    }
    Ok(rows)
}
