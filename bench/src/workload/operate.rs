//! What operators' tools cost: the same cycle while spans are sent, while people look at the page, and without the sums of the
//! statistics.

use std::sync::Arc;

use super::{
    Bench,
    turns::{Case, Turns},
};
use crate::{
    environment::{Environment, Special},
    error::{Error, Result},
    load::{Pages, Plan, Receiver, Seen},
    report::{Row, rounded},
};

const ROUNDS: u32 = 7;
/// Seconds of each case, all rounds together.
const SECONDS: u64 = 35;
/// The part of jobs whose spans are sent.
const SAMPLED: f64 = 0.01;
/// Open pages.
const PAGES: usize = 20;
/// Changes that one call of the sum takes.
const CHANGES: i64 = 20_000;

/// What goes on beside the cycle.
enum Beside {
    /// What is always there: jobs are counted for the statistics, and the counts summed up.
    Nothing,
    /// The counts are not summed up.
    NoSums,
    Spans(Receiver),
    Pages {
        seen: Arc<Seen>,
        open: Option<Pages>,
    },
    /// The same with another program.
    OtherProgram,
}

pub(super) async fn run(bench: &mut Bench) -> Result<Vec<Row>> {
    let receiver = Receiver::start().await?;
    let set = vec![format!("otlp_endpoint={}", receiver.endpoint), format!("otlp_sample_ratio={SAMPLED}")];
    let mut all = vec![(Beside::Nothing, Special::default())];
    // A run that ends too early would leave the statistics of somebody's database without sums.
    if bench.args.database_url.is_none() {
        all.push((Beside::NoSums, Special::default()));
    }
    all.push((Beside::Spans(receiver), Special::set(set)));
    all.push((Beside::Pages { seen: Seen::new()?, open: None }, Special::default()));
    all.extend(bench.args.beside.clone().map(|program| (Beside::OtherProgram, Special::program(program))));
    let mut cases = Vec::new();
    for (case, special) in all {
        cases.push((case, bench.setting.special(bench.args.brokers as usize, special).await?));
    }
    let (plan, demand, time) = (bench.plan(1), bench.closed(), bench.args.time(SECONDS));
    let turns = Turns { workload: "operate", rounds: bench.args.rounds(ROUNDS), plan, demand, time };
    let rows = turns.measure(&mut cases).await?;
    for (_, environment) in cases {
        bench.leave(environment).await?;
    }
    Ok(rows)
}

impl Case for Beside {
    fn name(&self) -> String {
        match self {
            Self::Nothing => "plain".into(),
            Self::NoSums => "no sums of statistics".into(),
            Self::Spans(_) => format!("spans of {} % of jobs", SAMPLED * 100.0),
            Self::Pages { .. } => format!("{PAGES} open pages"),
            Self::OtherProgram => "other program".into(),
        }
    }

    async fn begin(&mut self, plan: &Plan, environment: &Environment) -> Result<()> {
        match self {
            Self::NoSums => hold_sums(environment).await,
            Self::Pages { seen, open } => {
                let task_type = plan.types.first().map_or("", String::as_str);
                *open = Some(Pages::open(PAGES, environment.http(0)?, task_type, seen));
                Ok(())
            }
            Self::Nothing | Self::Spans(_) | Self::OtherProgram => Ok(()),
        }
    }

    async fn end(&mut self, environment: &Environment) -> Result<()> {
        match self {
            Self::NoSums => catch_up(environment).await,
            Self::Pages { open, .. } => {
                *open = None;
                Ok(())
            }
            Self::Nothing | Self::Spans(_) | Self::OtherProgram => Ok(()),
        }
    }

    fn describe(&self, row: &mut Row) -> Result<()> {
        match self {
            Self::Spans(receiver) => {
                row.fact("spans", receiver.spans());
                if receiver.spans() == 0 {
                    return Err(Error::Process("no span was sent: nothing was measured".into()));
                }
            }
            Self::Pages { seen, .. } => {
                seen.check()?;
                row.fact("views", seen.views());
                row.fact("view_p50_ms", rounded(seen.percentile_ms(50.0), 2));
                row.fact("view_p99_ms", rounded(seen.percentile_ms(99.0), 2));
                row.fact("live_figures", seen.figures());
            }
            Self::Nothing | Self::NoSums | Self::OtherProgram => {}
        }
        Ok(())
    }
}

/// Nobody sums up what was summed up just now, as it seems.
async fn hold_sums(environment: &Environment) -> Result<()> {
    let held = "UPDATE howdah.statistics_sum SET summed = 'infinity'";
    environment.database()?.execute(held, "holding the sums of the statistics").await
}

/// Sums up what has gathered, so that no slice of another case pays for it.
async fn catch_up(environment: &Environment) -> Result<()> {
    let database = environment.database()?;
    let freed = "UPDATE howdah.statistics_sum SET summed = '-infinity'";
    database.execute(freed, "freeing the sums of the statistics").await?;
    loop {
        let sum = "SELECT coalesce(howdah.sum_statistics($1::bigint::integer, interval '0'), -1)";
        // -1: a broker does it at this moment.
        let taken = database.number(sum, &[&CHANGES]).await?;
        if (0..CHANGES).contains(&taken) {
            return Ok(());
        }
    }
}
